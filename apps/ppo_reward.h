// The reward of a ppo run that is no model: a rule, a command, a Python function.
#pragma once

#include "apps/options.h"
#include "reknit/rlhf/ppo.h"
#include "reknit/text/tokenizer.h"

#include <optional>
#include <string>
#include <vector>

namespace reknit {

/// "length:64", "sh score.sh": what a checkpoint remembers; empty where a model judges.
std::string reward_name(const PpoOptions& options);

/// UsageError or InputError for a rule that is none, one that reads text without a
/// tokenizer, or a function that is not FILE.py:NAME of a readable file.
void check_reward(const PpoOptions& options, const std::optional<Tokenizer>& tokenizer);

/// One rank's judge, empty where a model judges. `others` are the rows' other keys, one
/// JSON object a prompt; it and the tokenizer outlive the function.
ScoreFunction make_score(const PpoOptions& options, const std::optional<Tokenizer>& tokenizer,
                         const std::vector<std::string>& others);

}  // namespace reknit
