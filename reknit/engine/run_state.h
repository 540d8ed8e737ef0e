// Saving and resuming a run: every model's shards, every trainer's state, and what the
// caller wants to remember, in one folder that is whole or does not exist.
//
// state.json holds {format, version, step, world, models, extra}; a model is {name,
// files, placement, dtype, parameters, frozen_saved, averaged, value_head, trainer}. The shard
// files are described in checkpoint/shards.h, complete.json in checkpoint/run_folder.h; MODEL.hf
// is a Hugging Face folder without weights. What was
// saved under any placement and rank count loads under any other, values exact; under
// the same ones the continued run is bit-equal.
//
// Every function with a Communicator or a RunState is collective over its world. An error
// on one rank aborts the communicator of all with its sentence.
#pragma once

#include "reknit/checkpoint/hf_folder.h"
#include "reknit/engine/trainer.h"
#include "reknit/models/spec.h"

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace reknit {

/// One model of a run; not owned.
struct RunModel {
  std::string name;  ///< "actor": part of file names
  Store* store = nullptr;
  Trainer* trainer = nullptr;  ///< null: only the parameters
  /// False leaves frozen parameters out; whoever loads must have loaded them before.
  bool save_frozen = true;
  /// A moving average that belongs to the run, one flat tensor for each of the store's
  /// shards(); null: none.
  std::vector<at::Tensor>* averages = nullptr;
  /// Whose configuration and tokenizer files go along, for `reknit export`, and what the
  /// model is; null: a checkpoint that cannot be exported.
  const HfFolder* source = nullptr;
  const ModelSpec* spec = nullptr;
};

struct RunState {
  Communicator* world = nullptr;  ///< not owned; all ranks of the run
  int64_t step = 0;
  std::vector<RunModel> models;
};

/// Throws UsageError if `out_dir` is not one folder that all ranks see. Makes it if absent.
void require_shared_folder(Communicator& world, const std::string& out_dir);

/// Writes OUT/step-NNNNNN and then removes all but the `keep` last saved ones (0: keeps
/// all). `extra` counts on rank 0. Returns the folder's path. For use between steps:
/// gradients that no step has used are not saved, and a warning says so. The host waits
/// (run_saver.h has the save that goes on in the background). Throws WriteError if the disk is full
/// or fails, UsageError if the folder cannot be made.
std::string save_run(const RunState& run, const nlohmann::json& extra, const std::string& out_dir,
                     int keep = 2);

/// The newest whole checkpoint of `out_dir`, the same on every rank; a line of the log
/// names those that are skipped.
std::optional<std::string> find_newest_run(Communicator& world, const std::string& out_dir);

/// Restores run.models and run.step from a checkpoint's folder and returns its `extra`.
/// Gradients that no step has used are dropped, and a warning says so. Models of the
/// checkpoint that the run does not name are left alone. Checks everything before the first
/// value changes: InputError if a file is missing or damaged, a model is absent, or its
/// parameters differ (the first one is named).
nlohmann::json load_run(RunState& run, const std::string& path);

}  // namespace reknit
