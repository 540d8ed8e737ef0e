// The frame of a training command on one rank: resume, steps, stops, checkpoints, the end.
#pragma once

#include "apps/options.h"
#include "apps/progress.h"
#include "apps/run_folder.h"
#include "reknit/checkpoint/hf_folder.h"
#include "reknit/engine/comm_report.h"
#include "reknit/engine/run_saver.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <optional>
#include <string>

namespace reknit {

/// What a command adds is in the virtual functions; "on rank 0" are those that only that
/// rank calls, the others are collective. One thread, the rank's.
class TrainRun {
 public:
  struct Plan {
    std::string command;       ///< "ppo"
    int64_t steps = 0;         ///< of the whole run
    int64_t log_interval = 1;  ///< unless --log-interval says
    CommsLoggerConfig comms_logger = {};
    std::optional<int64_t> comms_interval = {};  ///< steps between its tables; none: at the end
  };

  /// All three outlive it.
  TrainRun(const TrainOptions& options, Communicator& world, RunFolder& folder);
  virtual ~TrainRun();

  /// Resumes where that is asked for, takes the steps, saves, writes models and summary. A
  /// signal or the time limit ends it early, on all ranks after the same step.
  void run();

 protected:
  /// Said before the first step, on rank 0.
  virtual std::string headline() const = 0;
  virtual Plan plan() const = 0;
  /// Step number `step`, from 0.
  virtual void take_step(int64_t step) = 0;
  /// The text of config.json, which a resumed run writes once it is known to go on; a fresh
  /// one has written it before its ranks start.
  virtual std::string config() const = 0;
  /// Of the last step, on rank 0: a line of metrics.jsonl.
  virtual nlohmann::ordered_json metrics() const = 0;
  /// On rank 0, with each such line once it is written: for other writers.
  virtual void written(const nlohmann::ordered_json& /*line*/) {}
  /// Of the last step, on rank 0: what is printed every --log-interval steps.
  virtual std::string printed() = 0;
  /// Why the run should end after step `done` although nobody asked; empty: it goes on.
  virtual std::string early_end(int64_t /*done*/) const { return ""; }

  /// What a checkpoint holds beside the step, which is filled in.
  virtual std::vector<RunModel> models() = 0;
  virtual nlohmann::json remembered() const = 0;
  /// Takes `remembered` of the checkpoint in `path`; throws where it is another run.
  virtual void recall(const nlohmann::json& remembered, const std::string& path) = 0;

  /// Takes a checkpoint of DeepSpeed and returns the steps that it has made. The default
  /// throws InputError: the command has no use for one.
  virtual int64_t take_deepspeed(const std::string& path);

  /// Writes the models into the run folder; only called if there is one.
  virtual void write_models(const std::string& folder) = 0;
  /// What follows the last step, before the models are written.
  virtual void conclude() {}
  /// On rank 0: more keys of summary.json.
  virtual void summarise(nlohmann::ordered_json& /*summary*/) const {}

  Communicator& world() const { return world_; }
  RunFolder& folder() const { return folder_; }
  bool leader() const { return world_.rank() == 0; }
  /// A line above the progress bar, on rank 0; nothing elsewhere.
  void say(const std::string& text);

  /// However the folder was typed, and from wherever.
  static std::string place_of(const HfFolder& folder);
  /// Throws UsageError unless the run in `path` was begun with the same `key`.
  template <class T>
  void require_same(const nlohmann::json& remembered, const char* key, const T& now,
                    const std::string& path) const {
    require_equal(remembered, key, nlohmann::json(now), path);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void require_equal(const nlohmann::json& remembered, const char* key, const nlohmann::json& now,
                     const std::string& path) const;
  bool should_stop(Clock::time_point start);
  void record_step(const Moment& begin);
  void report();
  RunState state();
  void save(SaveFrom from);
  void resume();
  /// The checkpoint to go on with; none: a fresh start, which is said.
  std::optional<std::string> resumed_folder();
  void finish(double seconds);

  const TrainOptions& options_;
  Communicator& world_;
  RunFolder& folder_;
  Plan plan_;
  std::optional<Progress> progress_;
  std::optional<CommLog> comm_log_;  ///< if the config asks for it
  RunSaver saver_;
  std::string stopped_;  ///< why: the first rank's reason; empty while it goes on
  nlohmann::ordered_json last_;
  int64_t step_ = 0;   ///< steps done
  int64_t saved_ = 0;  ///< of the last checkpoint that was begun
};

}  // namespace reknit
