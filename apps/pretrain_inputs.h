// What a pretraining run reads before any rank starts: the model's description and the data.
#pragma once

#include "apps/options.h"
#include "reknit/checkpoint/hf_folder.h"
#include "reknit/engine/pretrain.h"

#include <nlohmann/json.hpp>

#include <memory>
#include <optional>

namespace reknit {

struct PretrainInputs {
  ModelSpec spec;   ///< with the dropout that was asked for
  HfFolder folder;  ///< the model, or its config alone
  bool has_weights = false;
  HfFolder written;  ///< whose config and tokenizer the result gets
  DocumentRules documents;
  std::shared_ptr<const BlendedDataset> train, valid, test;  ///< the last two may be null
  nlohmann::json data;                                       ///< what a resumed run must find again
};

/// InputError for files, UsageError for what the flags ask of them.
PretrainInputs read_pretrain_inputs(const PretrainOptions& options);

/// Sequences of each step.
BatchPlan batch_plan(const PretrainOptions& options);
/// Steps of the whole run.
int64_t total_steps(const PretrainOptions& options, const PretrainInputs& inputs);
/// The schedule of Megatron's flags; empty if none is given.
std::optional<Schedule> sample_schedule(const PretrainOptions& options, int64_t steps);
/// The growing weight decay of Megatron's flags, over the samples of the run; empty if it is
/// constant. With one there is a sample_schedule.
std::optional<DecayRamp> weight_decay_ramp(const PretrainOptions& options, int64_t steps);
Checkpointing checkpointing(const PretrainOptions& options);

}  // namespace reknit
