// What a ppo run reads before its ranks start: models, tokenizer, prompts.
#pragma once

#include "apps/options.h"
#include "reknit/checkpoint/hf_folder.h"
#include "reknit/rlhf/ppo_check.h"
#include "reknit/text/tokenizer.h"

#include <optional>
#include <string>
#include <vector>

namespace reknit {

/// What all ranks share, read before any of them starts.
struct PpoInputs {
  HfFolder actor, critic, reference;
  std::optional<HfFolder> reward;  ///< none: a rule or a program
  std::optional<Tokenizer> tokenizer;
  std::vector<std::vector<int64_t>> prompts;
  std::vector<std::string> others;  ///< the other keys of each prompt's row
};

/// Opens the folders and reads the prompts, those that are too long left out. InputError if
/// something is missing, the models' tokens differ, or the reward has no value head.
PpoInputs read_ppo_inputs(const PpoOptions& options);

/// Of the prompts in their order, with what a reward program is told of them: a checkpoint
/// knows its run by it.
std::string fingerprint(const PpoInputs& inputs);

/// All that take part, the actor first.
std::vector<NamedSpec> model_specs(const PpoInputs& inputs);

}  // namespace reknit
