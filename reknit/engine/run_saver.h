// Checkpoints that are written while the run goes on.
#pragma once

#include "reknit/checkpoint/run_folder.h"
#include "reknit/checkpoint/safetensors.h"
#include "reknit/engine/background.h"
#include "reknit/engine/run_state.h"

#include <atomic>
#include <memory>

namespace reknit {

/// What a save reads while it is being written.
enum class SaveFrom {
  kCopy,   ///< host memory that start() fills: the run may go on at once
  kShards  ///< the live shards: nothing may change them until the save has ended
};

/// One save at a time. Every rank writes its files on a thread of its own; when poll() finds
/// all of them done, rank 0 completes the folder, also in the background, and renames it: until
/// then the folder has no name that anybody would resume from.
///
/// start, poll and wait are collective over the run's world and called by the rank's thread. An
/// error of a background thread is thrown by the next of them, and aborts the communicator of
/// all. The destructor gives up a save that has not ended and waits for this rank's thread.
///
/// kCopy takes as much host memory (page-locked with a GPU) as the rank writes, kept for the
/// next save: 12 bytes a trained element of its shard with Adam, 4 more with a moving average.
class RunSaver {
 public:
  RunSaver();
  ~RunSaver();
  RunSaver(const RunSaver&) = delete;

  /// Waits for the save before; then begins one as save_run does, and returns its path.
  std::string start(const RunState& run, const nlohmann::json& extra, const std::string& out_dir,
                    int keep, SaveFrom from);
  /// Goes on with a save as far as all ranks have come. Does nothing, also no collective, if
  /// there is none.
  void poll();
  /// Until there is none.
  void wait();
  /// The same on every rank.
  bool in_flight() const { return job_ != nullptr; }

 private:
  struct Job;

  void begin(const RunState& run, const nlohmann::json& extra, SaveFrom from);
  void copy_to_host(NamedTensors& tensors, size_t model);
  void write();
  void complete();
  void advance();

  std::vector<std::vector<at::Tensor>> copies_;  ///< of each model, kept between saves
  std::unique_ptr<Job> job_;
  std::atomic<bool> given_up_ = false;
  Background background_;  ///< last: its thread uses the others
};

}  // namespace reknit
