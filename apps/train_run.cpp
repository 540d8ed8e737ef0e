#include "apps/train_run.h"

#include "apps/signals.h"
#include "reknit/base/log.h"
#include "reknit/checkpoint/deepspeed_folder.h"
#include "reknit/engine/runtime.h"

#include <filesystem>

namespace reknit {
namespace {

// In this library's words; none: all.
std::optional<std::vector<std::string>> logged_operations(const CommsLoggerConfig& config) {
  if (config.prof_all) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  for (const std::string& name : config.prof_ops) {
    const bool gather = name.starts_with("all_gather");
    const bool scatter = name.starts_with("reduce_scatter");
    names.push_back(gather                        ? "all_gather"
                    : scatter                     ? "reduce_scatter"
                    : name == "all_to_all_single" ? "all_to_all"
                                                  : name);
  }
  return names;
}

}  // namespace

TrainRun::TrainRun(const TrainOptions& options, Communicator& world, RunFolder& folder)
    : options_(options), world_(world), folder_(folder) {}

TrainRun::~TrainRun() = default;

void TrainRun::run() {
  plan_ = plan();
  log_once(headline());
  if (options_.out.empty()) {
    log_once("there is no --out: nothing of this run is kept");
  }
  if (!options_.out.empty()) {
    require_shared_folder(world_, options_.out);
  }
  resume();
  if (leader() && !options_.resume.empty()) {
    folder_.write("config.json", config());
  }
  if (leader()) {
    progress_.emplace(plan_.command, plan_.steps);
  }
  // A trace has brought its own.
  std::optional<Recorder> recorder;
  if (plan_.comms_logger.enabled) {
    comm_log_.emplace(logged_operations(plan_.comms_logger));
    if (Recorder::current() == nullptr) {
      recorder.emplace(nullptr);
    }
    Recorder::current()->collect(false);  // what came before the first step
  }
  const auto start = Clock::now();
  while (step_ < plan_.steps && !should_stop(start)) {
    const Moment begin;
    take_step(step_++);
    record_step(begin);
    report();
    saver_.poll();
    if (options_.save_interval && step_ % *options_.save_interval == 0 && step_ < plan_.steps) {
      save(options_.sync_save ? SaveFrom::kShards : SaveFrom::kCopy);
    }
  }
  conclude();
  if (comm_log_ && !(plan_.comms_interval && step_ % *plan_.comms_interval == 0)) {
    say(comm_log_->table());
  }
  progress_.reset();
  if (options_.save_interval && step_ > saved_) {
    save(SaveFrom::kShards);
  }
  saver_.wait();
  finish(std::chrono::duration<double>(Clock::now() - start).count());
}

// Ranks agree, so that all of them end after the same step.
bool TrainRun::should_stop(Clock::time_point start) {
  const std::chrono::duration<double> passed = Clock::now() - start;
  const bool late = options_.time_limit_min && passed.count() > *options_.time_limit_min * 60;
  const std::string mine = stop_requested() ? stop_reason()
                           : late           ? "time limit"
                                            : early_end(step_);
  if (largest(world_, mine.empty() ? 0 : 1) == 0) {
    return false;
  }
  for (const std::string& reason : gather_texts(world_, mine)) {
    stopped_ = stopped_.empty() ? reason : stopped_;
  }
  return true;
}

void TrainRun::say(const std::string& text) {
  if (progress_) {
    progress_->line(text);
  }
}

// What the trace and the communication log keep of the step.
void TrainRun::record_step(const Moment& begin) {
  Recorder* recorder = Recorder::current();
  if (recorder == nullptr) {
    return;
  }
  recorder->span("steps", "step", begin, step_);
  const std::vector<CommTime> times = recorder->collect(comm_log_.has_value());
  if (!comm_log_) {
    return;
  }
  const Recorder::Silence silence(*recorder);
  comm_log_->add(times, waiting_of_ranks(world_, times));
  for (const CommTime& time : times) {
    if (plan_.comms_logger.verbose && leader() && comm_log_->takes(time.kind)) {
      say(CommLog::line(time, plan_.comms_logger.debug));
    }
  }
}

void TrainRun::report() {
  if (!leader()) {
    return;
  }
  last_ = metrics();
  if (comm_log_) {
    comm_log_->extend(last_["comm"]);
    last_["straggler"] = comm_log_->straggler();
  }
  folder_.metrics(last_);
  written(last_);
  if (step_ % options_.log_interval.value_or(plan_.log_interval) == 0) {
    say(printed());
  }
  if (comm_log_ && plan_.comms_interval && step_ % *plan_.comms_interval == 0) {
    say(comm_log_->table());
  }
  progress_->advance(step_);
}

RunState TrainRun::state() {
  return {&world_, step_, models()};
}

void TrainRun::save(SaveFrom from) {
  saver_.start(state(), remembered(), options_.out, static_cast<int>(options_.keep), from);
  if (from == SaveFrom::kShards) {
    saver_.wait();
  }
  saved_ = step_;
}

std::optional<std::string> TrainRun::resumed_folder() {
  if (options_.resume.empty()) {
    return std::nullopt;
  }
  if (options_.resume != "auto") {
    return options_.resume;
  }
  if (DeepSpeedFolder::is_one(options_.resume_from)) {
    return options_.resume_from;
  }
  const std::string& searched = options_.resume_from.empty() ? options_.out : options_.resume_from;
  std::optional<std::string> newest = find_newest_run(world_, searched);
  if (!newest) {
    if (leader()) {
      folder_.resume_after(0);  // what ended before its first checkpoint
    }
    log_once("there is no checkpoint in ", searched, ": a fresh start");
  }
  return newest;
}

void TrainRun::resume() {
  const std::optional<std::string> path = resumed_folder();
  if (!path) {
    return;
  }
  if (DeepSpeedFolder::is_one(*path)) {
    step_ = take_deepspeed(*path);
  } else {
    RunState run = state();
    recall(load_run(run, *path), *path);
    step_ = run.step;
  }
  saved_ = step_;
  if (leader()) {
    folder_.resume_after(step_);
  }
  log_once("resumed after step ", step_, " from ", *path,
           step_ < plan_.steps ? "" : str(": nothing is left of the ", plan_.steps, " steps"));
}

int64_t TrainRun::take_deepspeed(const std::string& path) {
  throw InputError(
      str(path, " is a checkpoint of DeepSpeed, which a ", plan_.command, " run cannot go on with"),
      str("make a model of it: reknit export ", path, " --model-config CONFIG --out DIR"));
}

std::string TrainRun::place_of(const HfFolder& folder) {
  return std::filesystem::canonical(folder.path()).string();
}

// The same data position and judges: otherwise it would be another run.
void TrainRun::require_equal(const nlohmann::json& remembered, const char* key,
                             const nlohmann::json& now, const std::string& path) const {
  if (!remembered.is_object() || !remembered.contains(key)) {
    throw InputError(
        str(path, " is no checkpoint of a ", plan_.command, " run: it says nothing of its ", key),
        "resume with the command that has written it");
  }
  if (remembered.at(key) != now) {
    throw UsageError(str("the run in ", path, " began with ", key, " ", remembered.at(key).dump(),
                         ", this command says ", now.dump()),
                     "resume with the flags that the run began with, or start in another --out");
  }
}

void TrainRun::finish(double seconds) {
  if (step_ < plan_.steps) {
    log_once("stopped after step ", step_, " of ", plan_.steps, " (", stopped_, ")",
             options_.save_interval ? "; go on with the same command and --resume auto" : "");
  }
  if (options_.out.empty()) {
    return;
  }
  write_models(options_.out);
  if (!leader()) {
    return;
  }
  nlohmann::ordered_json summary = {{"command", plan_.command},
                                    {"ranks", world_.size()},
                                    {"steps", step_},
                                    {"planned_steps", plan_.steps},
                                    {"seconds", seconds}};
  summarise(summary);
  if (comm_log_) {
    summary["comm"] = comm_log_->json();
  }
  if (!last_.is_null()) {
    summary["last"] = last_;
  }
  folder_.write("summary.json", summary.dump(2) + "\n");
  log_once("the trained weights, metrics.jsonl and summary.json are in ", options_.out);
}

}  // namespace reknit
