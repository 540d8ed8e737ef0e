#include "reknit/config/deepspeed_checks.h"

#include "reknit/base/format.h"
#include "reknit/config/deepspeed_keys.h"
#include "reknit/config/json_path.h"
#include "reknit/config/json_text.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using nlohmann::json;

void wrong(ConfigReading& reading, std::string path, std::string value, std::string text,
           std::string help = "") {
  reading.findings.push_back(
      {Severity::kError, std::move(path), std::move(value), std::move(text), std::move(help)});
}

using Names = std::vector<std::string>;

/// The parameters of each schedule.
const std::map<std::string, Names>& schedule_params() {
  static const std::map<std::string, Names> params = {
      {"WarmupLR", {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"}},
      {"WarmupDecayLR",
       {"total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"}},
      {"WarmupCosineLR",
       {"total_num_steps", "warmup_min_ratio", "warmup_num_steps", "cos_min_ratio", "warmup_type"}},
      {"OneCycle",
       {"cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size",
        "cycle_second_step_size", "cycle_first_stair_count", "cycle_second_stair_count",
        "decay_step_size", "cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"}},
      {"LRRangeTest",
       {"lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate",
        "lr_range_test_staircase"}},
  };
  return params;
}

/// The parameters of each optimizer, those of all (lr, weight_decay, decay_all) apart.
const std::map<std::string, Names>& optimizer_params() {
  static const std::map<std::string, Names> params = {
      {"adam", {"betas", "eps", "bias_correction", "adam_w_mode"}},
      {"adamw", {"betas", "eps", "bias_correction", "adam_w_mode"}},
      {"adagrad", {"eps", "lr_decay", "initial_accumulator_value"}},
      {"lamb", {"betas", "eps", "bias_correction", "min_coeff", "max_coeff"}},
      {"lion", {"betas"}},
      {"sgd", {"momentum", "dampening", "nesterov"}},
      {"muon",
       {"betas", "eps", "momentum", "nesterov", "muon_lr", "adam_lr", "ns_steps", "adjust_lr_fn"}},
  };
  return params;
}

/// Refuses parameters in section `path` that belong to another type than `type`.
void check_params(const json& config, const std::string& path, const std::string& type,
                  const Names& allowed, ConfigReading& reading) {
  const json* params = find_path(config, path);
  if (params == nullptr || !params->is_object()) {
    return;
  }
  for (const auto& [name, value] : params->items()) {
    const KeySpec* key = find_key(path + "." + name);
    if (key != nullptr && key->fate == KeyFate::kImplemented && !value.is_null() &&
        std::find(allowed.begin(), allowed.end(), name) == allowed.end()) {
      wrong(reading, path + "." + name, show_json(value), str(type, " has no such parameter"));
    }
  }
}

void check_hierarchical(const RunShape& shape, ConfigReading& reading) {
  const int64_t size = reading.config.zero.mics_shard_size;
  const std::string path = "zero_optimization.mics_hierarchical_params_gather";
  if (size < 1) {
    wrong(reading, path, "true", "needs zero_optimization.mics_shard_size");
    return;
  }
  const int64_t local = shape.ranks / shape.nodes;
  if (size <= local || size % local != 0) {
    wrong(reading, path, "true",
          str("the shard group must span whole nodes, and more than one: mics_shard_size ", size,
              " with ", local, " ranks a node (", shape.ranks, " ranks, ", shape.ranks_from, "; ",
              shape.nodes, " nodes, ", shape.nodes_from, ")"),
          size <= local ? "turn the hierarchical gather off: the group is inside one node"
                        : str("make mics_shard_size a multiple of ", local));
  }
}

void check_secondary(const RunShape& shape, ConfigReading& reading) {
  const ZeroConfig& zero = reading.config.zero;
  const int64_t local = shape.ranks / shape.nodes;
  if (zero.hpz_partition_size <= 1) {
    return;
  }
  const std::string path = "zero_optimization.zero_hpz_partition_size";
  const std::string value = str(zero.hpz_partition_size);
  if (zero.stage != 3) {
    wrong(reading, path, value, str("needs zero_optimization.stage 3, not ", zero.stage));
  }
  if (zero.mics_shard_size != -1) {
    wrong(reading, path, value, "cannot be combined with zero_optimization.mics_shard_size",
          "keep one of the two: both keep gathers inside a node");
  }
  if (local % zero.hpz_partition_size != 0) {
    wrong(reading, path, value,
          str("does not divide the ", local, " ranks of a node (", shape.ranks, " ranks, ",
              shape.ranks_from, "; ", shape.nodes, " nodes, ", shape.nodes_from, ")"));
  }
}

}  // namespace

void check_precision(const json& config, ConfigReading& reading) {
  const DeepSpeedConfig& c = reading.config;
  if (c.fp16.enabled && c.bf16.enabled) {
    wrong(reading, "", "", "fp16.enabled and bf16.enabled are both true", "keep one of the two");
  }
  const bool dynamic = c.fp16.enabled && c.fp16.loss_scale == 0;
  if (dynamic && c.fp16.min_loss_scale <= 0) {
    wrong(reading, "fp16.min_loss_scale", str(c.fp16.min_loss_scale),
          "must be above 0 when the loss scale is dynamic");
  } else if (dynamic && std::ldexp(1.0, c.fp16.initial_scale_power) < c.fp16.min_loss_scale) {
    wrong(reading, "fp16.min_loss_scale", str(c.fp16.min_loss_scale),
          str("is above the scale that fp16.initial_scale_power = ", c.fp16.initial_scale_power,
              " begins with"));
  }
  const json* dtype = find_path(config, "data_types.param_dtype");
  if (dtype != nullptr && dtype->is_string() && *dtype != "auto" &&
      *dtype != to_string(c.precision())) {
    wrong(
        reading, "data_types.param_dtype", show_json(*dtype),
        str("contradicts fp16.enabled and bf16.enabled, which make it ", to_string(c.precision())),
        "set fp16.enabled or bf16.enabled and leave param_dtype out");
  }
}

void check_zero(const RunShape& shape, ConfigReading& reading) {
  const ZeroConfig& zero = reading.config.zero;
  if (shape.nodes < 1 || shape.ranks % shape.nodes != 0) {
    wrong(reading, "", "",
          str(plural(shape.ranks, "rank"), " (", shape.ranks_from, ") cannot be spread over ",
              shape.nodes, " equal nodes (", shape.nodes_from, ")"));
    return;
  }
  if (zero.mics_hierarchical) {
    check_hierarchical(shape, reading);
  }
  check_secondary(shape, reading);
  if (zero.mics_shard_size == -1) {
    return;
  }
  const std::string path = "zero_optimization.mics_shard_size";
  const std::string value = str(zero.mics_shard_size);
  if (zero.mics_shard_size < 1) {
    wrong(reading, path, value, "must be 1 or more, or -1 for off");
  } else if (shape.ranks % zero.mics_shard_size != 0) {
    wrong(reading, path, value,
          str("does not divide ", plural(shape.ranks, "rank"), " (", shape.ranks_from, ")"));
  }
  if (zero.stage != 3) {
    wrong(reading, path, value, str("needs zero_optimization.stage 3, not ", zero.stage));
  }
}

namespace {

constexpr std::string_view kOptimizers = "Adam|AdamW|Adagrad|Lamb|Lion|SGD|Muon";

/// Why an optimizer of DeepSpeed is not among ours; empty for all others.
std::string refusal(const std::string& type) {
  if (type == "onebitadam" || type == "onebitlamb" || type == "zerooneadam") {
    return "compresses gradients to one bit, which ZeRO's reduction does not do; "
           "use Adam or Lamb, and 16-bit gradients";
  }
  if (type == "muadam" || type == "muadamw" || type == "musgd") {
    return "needs the shapes of a base model (maximal update parametrization), which a config "
           "does not hold; use the optimizer without Mu";
  }
  return "";
}

/// False if the type is none of ours.
bool check_optimizer_type(ConfigReading& reading) {
  OptimizerConfig& optimizer = reading.config.optimizer;
  const std::string given = optimizer.type;
  for (char& c : optimizer.type) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (optimizer.type.empty() || optimizer_params().contains(optimizer.type)) {
    return !optimizer.type.empty();
  }
  if (const std::string why = refusal(optimizer.type); !why.empty()) {
    wrong(reading, "optimizer.type", show_json(given), why);
  } else {
    const std::string near = nearest_word(given, kOptimizers);
    wrong(reading, "optimizer.type", show_json(given), str("must be one of ", kOptimizers),
          near.empty() ? "" : str("did you mean ", near, "?"));
  }
  return false;
}

/// Where a type's default is not that of the table.
void complete_optimizer(const json& config, OptimizerConfig& optimizer) {
  const auto open = [&](const char* name) {
    const json* value = find_path(config, str("optimizer.params.", name));
    return value == nullptr || value->is_null() || *value == json("auto");
  };
  const bool muon = optimizer.type == "muon";
  if (open("betas") && (muon || optimizer.type == "lion")) {
    optimizer.betas = {0.9, muon ? 0.95 : 0.99};
  }
  if (open("eps") && (muon || optimizer.type == "adagrad")) {
    optimizer.eps = 1e-10;
  }
  if (muon || optimizer.type == "sgd") {
    optimizer.momentum = optimizer.momentum.value_or(muon ? 0.95 : 0.0);
    optimizer.nesterov = optimizer.nesterov.value_or(muon);
  }
}

}  // namespace

void check_optimizer(const json& config, ConfigReading& reading) {
  OptimizerConfig& optimizer = reading.config.optimizer;
  const json* params = find_path(config, "optimizer.params");
  if (find_path(config, "optimizer.type") == nullptr && params != nullptr && !params->empty()) {
    wrong(reading, "optimizer.params", show_json(*params), "has no optimizer.type beside it",
          "add \"type\": \"AdamW\"");
  }
  if (!check_optimizer_type(reading)) {
    return;
  }
  Names allowed = optimizer_params().at(optimizer.type);
  allowed.insert(allowed.end(), {"lr", "weight_decay", "decay_all"});
  check_params(config, "optimizer.params", optimizer.type, allowed, reading);
  complete_optimizer(config, optimizer);
  if (optimizer.type == "adamw" && !optimizer.adam_w_mode) {
    wrong(reading, "optimizer.params.adam_w_mode", "false",
          "contradicts the type AdamW, whose decay is decoupled", "use the type Adam");
  }
  if (optimizer.type == "sgd" && *optimizer.nesterov &&
      (*optimizer.momentum == 0 || optimizer.dampening != 0)) {
    wrong(reading, "optimizer.params.nesterov", "true",
          "needs a momentum above 0 and no dampening");
  }
  if (optimizer.min_coeff > optimizer.max_coeff) {
    wrong(reading, "optimizer.params.min_coeff", str(optimizer.min_coeff),
          str("is above max_coeff = ", optimizer.max_coeff));
  }
}

namespace {

void check_cycle(ConfigReading& reading) {
  const SchedulerConfig& schedule = reading.config.scheduler;
  for (const char* name : {"cycle_min_lr", "cycle_max_lr"}) {
    const bool is_min = std::string_view(name) == "cycle_min_lr";
    if (!(is_min ? schedule.cycle_min_lr : schedule.cycle_max_lr)) {
      wrong(reading, str("scheduler.params.", name), "", "is missing; OneCycle needs it");
    }
  }
  if (schedule.cycle_max_mom >= 1) {
    wrong(reading, "scheduler.params.cycle_max_mom", str(schedule.cycle_max_mom),
          "must be below 1");
  }
  const std::string& type = reading.config.optimizer.type;
  if (schedule.cycle_momentum && (type == "sgd" || type == "adagrad" || type == "muon")) {
    reading.findings.push_back({Severity::kWarning, "scheduler.params.cycle_momentum", "true",
                                str("has no effect with ", type, ", which has no betas to cycle"),
                                ""});
  }
}

}  // namespace

void check_scheduler(const json& config, ConfigReading& reading) {
  SchedulerConfig& schedule = reading.config.scheduler;
  const json* params = find_path(config, "scheduler.params");
  const bool has_params = params != nullptr && params->is_object();
  if (schedule.type.empty()) {
    if (has_params && !params->empty() && find_path(config, "scheduler.type") == nullptr) {
      wrong(reading, "scheduler.params", show_json(*params), "has no scheduler.type beside it");
    }
    return;
  }
  check_params(config, "scheduler.params", schedule.type, schedule_params().at(schedule.type),
               reading);
  if (schedule.type == "OneCycle") {
    check_cycle(reading);
  }
  if (schedule.type == "WarmupDecayLR" &&
      find_path(config, "scheduler.params.warmup_max_lr") == nullptr) {
    schedule.warmup_max_lr = 1e-3;
    reading.findings.push_back({Severity::kNote, "scheduler.params.warmup_max_lr", "",
                                "not given: DeepSpeed's 0.001, whatever the optimizer's rate", ""});
  }
  if (schedule.total_num_steps && *schedule.total_num_steps < schedule.warmup_num_steps) {
    reading.findings.push_back(
        {Severity::kWarning, "scheduler.params.total_num_steps", str(*schedule.total_num_steps),
         str("is less than warmup_num_steps = ", schedule.warmup_num_steps), ""});
  }
}

std::vector<std::vector<int64_t>> shard_groups(int64_t ranks, int64_t shard_size) {
  std::vector<std::vector<int64_t>> groups(ranks / shard_size);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    groups[rank / shard_size].push_back(rank);
  }
  return groups;
}

std::vector<std::vector<int64_t>> node_groups(int64_t ranks, int64_t shard_size, int64_t local) {
  std::vector<std::vector<int64_t>> groups;
  for (int64_t first = 0; first < ranks; first += shard_size) {
    for (int64_t place = 0; place < local; ++place) {
      std::vector<int64_t>& group = groups.emplace_back();
      for (int64_t rank = first + place; rank < first + shard_size; rank += local) {
        group.push_back(rank);
      }
    }
  }
  return groups;
}

std::vector<std::vector<int64_t>> replica_groups(int64_t ranks, int64_t shard_size) {
  std::vector<std::vector<int64_t>> groups(shard_size);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    groups[rank % shard_size].push_back(rank);
  }
  return groups;
}

}  // namespace reknit
