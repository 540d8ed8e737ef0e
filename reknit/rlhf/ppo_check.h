// What a PPO run can be refused for before any model is loaded.
#pragma once

#include "reknit/rlhf/ppo.h"

#include <span>
#include <string>
#include <vector>

namespace reknit {

struct NamedSpec {
  std::string name;  ///< for the sentence: "critic"
  ModelSpec spec;
};

/// `models` are all that take part, the actor first. UsageError for batches that are not
/// positive or do not divide, for a prompt that with its answer exceeds a model's positions,
/// and for a model that knows fewer tokens than the actor answers with; InputError for an
/// empty data set or prompt.
void check_ppo(const PpoSettings& settings, std::span<const NamedSpec> models,
               std::span<const std::vector<int64_t>> prompts);

}  // namespace reknit
