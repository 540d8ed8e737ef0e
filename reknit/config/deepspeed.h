// The settings that Reknit acts on, read from a DeepSpeed JSON config.
//
// Every key of such a config is declared once, in deepspeed_keys.cpp: path, type,
// default, one sentence, and what becomes of it here. The structs below are where the
// implemented ones land; their initialisers are the defaults (a test compares the two).
#pragma once

#include "reknit/config/batch.h"
#include "reknit/config/finding.h"

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace reknit {

enum class Precision { kFp32, kBf16, kFp16 };
const char* to_string(Precision precision);

struct ZeroConfig {
  int64_t stage = 0;
  int64_t persistence_threshold = 100'000;  ///< parameters up to it are never sharded (stage 3)
  int64_t model_persistence_threshold = INT64_MAX;  ///< elements of those; cut by the shard size
  bool overlap_comm = true;
  int64_t prefetch_bucket_size = 50'000'000;  ///< elements fetched ahead (stage 3)
  int64_t mics_shard_size = -1;               ///< ranks a shard group; -1: off
  bool mics_hierarchical = false;
  int64_t hpz_partition_size = 1;  ///< ranks of a second copy; 1: none
};

struct Fp16Config {
  bool enabled = false;
  double loss_scale = 0;  ///< 0: dynamic
  int64_t initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
};

struct Bf16Config {
  bool enabled = false;
};

/// Members keep DeepSpeed's names; which of them a type reads is checked. Where types have
/// defaults of their own, what was read is completed with the type's.
struct OptimizerConfig {
  /// "adam", "adamw", "adagrad", "lamb", "lion", "sgd" or "muon"; empty: the config has no
  /// optimizer section.
  std::string type;
  std::optional<double> lr;
  std::vector<double> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool decay_all = false;  ///< norms and biases decay as well
  bool bias_correction = true;
  bool adam_w_mode = true;         ///< decoupled decay; always true for "adamw"
  std::optional<double> momentum;  ///< given for "sgd" and "muon" once read
  double dampening = 0;
  std::optional<bool> nesterov;  ///< given for "sgd" and "muon" once read
  double lr_decay = 0;
  double initial_accumulator = 0;
  double min_coeff = 0.01;
  double max_coeff = 10;
  std::optional<double> muon_lr;
  std::optional<double> adam_lr;
  int64_t ns_steps = 5;
  std::string adjust_lr_fn = "original";
};

/// A learning-rate schedule as declared; the rule itself is optim's. Members keep
/// DeepSpeed's names and defaults; which of them a type reads is checked.
struct SchedulerConfig {
  std::string type;  ///< in DeepSpeed's spelling; empty: constant rate
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr;  ///< none: the optimizer's rate
  int64_t warmup_num_steps = 1000;
  std::string warmup_type = "log";
  std::optional<int64_t> total_num_steps;
  double warmup_min_ratio = 0;
  double cos_min_ratio = 1e-4;
  std::optional<double> cycle_min_lr;  ///< OneCycle has both
  std::optional<double> cycle_max_lr;
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size;
  int64_t cycle_first_stair_count = 0;
  std::optional<int64_t> cycle_second_stair_count;
  int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
  double lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1.0;
  bool lr_range_test_staircase = false;
};

/// Where a monitor writes the run's scalars: a folder and a subfolder in it.
struct MonitorConfig {
  bool enabled = false;
  std::string output_path;
  std::string job_name = "DeepSpeedJobName";
};

/// The communication log; docs/communication.md.
struct CommsLoggerConfig {
  bool enabled = false;
  bool verbose = false;               ///< a line for each operation
  bool prof_all = true;               ///< false: only prof_ops
  bool debug = false;                 ///< those lines name group and number
  std::vector<std::string> prof_ops;  ///< "all_gather", ...; DeepSpeed's names are turned into ours
};

struct HybridConfig {
  bool release_inference_cache = false;
  bool pin_parameters = true;  ///< false: gather layer by layer
};

struct DeepSpeedConfig {
  BatchRequest batch;  ///< as given; solve_batch turns it into numbers
  std::optional<int64_t> steps_per_print;
  double gradient_clipping = 1.0;                      ///< 0: off
  bool wall_clock_breakdown = false;                   ///< pretraining: times of a step's parts
  std::optional<std::string> communication_data_type;  ///< none: see StoreSettings
  ZeroConfig zero;
  Fp16Config fp16;
  Bf16Config bf16;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  HybridConfig hybrid;
  MonitorConfig tensorboard;
  MonitorConfig csv_monitor;
  CommsLoggerConfig comms_logger;

  Precision precision() const {
    return fp16.enabled ? Precision::kFp16 : bf16.enabled ? Precision::kBf16 : Precision::kFp32;
  }
};

/// The place a config is judged against, each with where the number came from.
struct RunShape {
  int64_t ranks = 1;
  std::string ranks_from = "default";
  int64_t nodes = 1;
  std::string nodes_from = "default";
  bool needs_batch = true;  ///< a command that trains: the batch triple must be solvable
};

struct ConfigReading {
  DeepSpeedConfig config;
  BatchSizes batch;   ///< all 0 when the triple could not be solved
  Findings findings;  ///< errors, warnings and notes in the order of the file
};

/// Turns aliases and deprecated names into today's, adding a note for each; a name
/// given together with its replacement is an error. What it returns is what the other
/// functions take.
nlohmann::json modern_names(const nlohmann::json& config, Findings& findings);

/// Reads and judges a config (any names). `origins` says, by path, where a value that
/// is not the file's came from ("--set", "--zero-stage"); `file` names the rest.
/// Never throws for what is in the config: all of it is in `findings`.
ConfigReading read_deepspeed(const nlohmann::json& config, const RunShape& shape,
                             const std::string& file = "the config",
                             const std::map<std::string, std::string>& origins = {});

/// MiCS groups: [group][rank]. Consecutive runs of `shard_size`, and the ranks that
/// hold the same shard. `shard_size` divides `ranks`.
std::vector<std::vector<int64_t>> shard_groups(int64_t ranks, int64_t shard_size);
std::vector<std::vector<int64_t>> replica_groups(int64_t ranks, int64_t shard_size);
/// Who gathers across nodes in the first stage of a hierarchical gather: the ranks of a
/// shard group with the same place in their nodes of `local` ranks.
std::vector<std::vector<int64_t>> node_groups(int64_t ranks, int64_t shard_size, int64_t local);

}  // namespace reknit
