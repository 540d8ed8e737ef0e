#include "reknit/rlhf/ppo_check.h"

namespace reknit {
namespace {

// All models read what the actor was asked and answered.
void check_models(const PpoSettings& settings, std::span<const NamedSpec> models) {
  const int64_t tokens =
      settings.sampling.vocab > 0 ? settings.sampling.vocab : models.front().spec.vocab;
  for (const auto& [name, spec] : models) {
    if (spec.vocab < tokens) {
      throw UsageError(str("the model ", name, " knows ", spec.vocab,
                           " tokens, the actor answers with ", tokens),
                       "actor, critic, reward and reference must share their token ids");
    }
  }
}

// At once, not at the step that first takes such a prompt.
void check_prompts(const PpoSettings& settings, std::span<const NamedSpec> models,
                   std::span<const std::vector<int64_t>> prompts) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<int64_t>(prompts[i].size());
    if (length == 0) {
      throw InputError(str("prompt ", i, " of the data has no tokens"), "remove it");
    }
    for (const auto& [name, spec] : models) {
      const int64_t positions = spec.max_positions;
      if (positions > 0 && length + settings.sampling.max_new_tokens > positions) {
        throw UsageError(str("prompt ", i, " of the data has ", length,
                             " tokens; with an answer of ", settings.sampling.max_new_tokens,
                             " it exceeds the ", positions, " positions of the model ", name),
                         "lower the limits of prompts or of answers");
      }
    }
  }
}

}  // namespace

void check_ppo(const PpoSettings& settings, std::span<const NamedSpec> models,
               std::span<const std::vector<int64_t>> prompts) {
  if (prompts.empty()) {
    throw InputError("there are no prompts", "look at the file of --prompts");
  }
  check_models(settings, models);
  check_prompts(settings, models, prompts);
  const int64_t minibatch = settings.minibatch == 0 ? settings.global_batch : settings.minibatch;
  if (settings.global_batch <= 0 || minibatch <= 0 || settings.global_batch % minibatch != 0) {
    throw UsageError(str("a global batch of ", settings.global_batch,
                         " prompts is not a multiple of updates of ", minibatch),
                     "choose batches that divide: prompts a step, micro-batch, accumulation");
  }
  if (settings.micro_batch <= 0) {
    throw UsageError(str("a micro-batch of ", settings.micro_batch), "give one of at least 1");
  }
}

}  // namespace reknit
