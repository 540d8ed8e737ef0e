#include "apps/ppo_reward.h"

#include "apps/shared_flags.h"
#include "reknit/rlhf/reward.h"

#include <cstdlib>
#include <memory>

namespace reknit {
namespace {

struct PythonFunction {
  std::string file;
  std::string name;
};

PythonFunction python_function(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    throw UsageError(str("--reward-fn ", text, " is not FILE.py:NAME"),
                     "name a Python file and a function in it: rewards.py:score");
  }
  return {text.substr(0, colon), text.substr(colon + 1)};
}

std::string python_interpreter() {
  const char* chosen = std::getenv("REKNIT_PYTHON");
  return chosen == nullptr || *chosen == '\0' ? "python3" : chosen;
}

std::shared_ptr<Reward> make_reward(const PpoOptions& o) {
  if (!o.reward_rule.empty()) {
    return make_rule_reward(o.reward_rule);
  }
  const std::chrono::seconds timeout(o.timeout_s);
  if (!o.reward_cmd.empty()) {
    return make_program_reward(shell_program(o.reward_cmd), "the reward command", timeout);
  }
  const auto [file, name] = python_function(o.reward_fn);
  return make_program_reward(python_program(python_interpreter(), file, name),
                             str("the reward function ", o.reward_fn), timeout);
}

JudgedAnswer judged(const Experience& experience, const std::optional<Tokenizer>& tokenizer,
                    std::string_view other) {
  const auto cut = experience.tokens.begin() + experience.prompt_length;
  JudgedAnswer answer{.prompt = {},
                      .completion = {},
                      .prompt_tokens = {experience.tokens.begin(), cut},
                      .tokens = {cut, experience.tokens.end()},
                      .ended = experience.ended,
                      .other = other};
  if (tokenizer) {
    answer.prompt = tokenizer->decode(answer.prompt_tokens, true);
    answer.completion = tokenizer->decode(answer.tokens, true);
  }
  return answer;
}

}  // namespace

std::string reward_name(const PpoOptions& o) {
  return o.reward_rule + o.reward_cmd + o.reward_fn;
}

void check_reward(const PpoOptions& o, const std::optional<Tokenizer>& tokenizer) {
  if (!o.reward_fn.empty()) {
    require_file("--reward-fn", python_function(o.reward_fn).file);
  }
  if (o.reward_rule.empty()) {
    return;
  }
  make_rule_reward(o.reward_rule);
  if (!tokenizer && rule_reads_text(o.reward_rule)) {
    throw InputError(str("--reward-rule ", o.reward_rule, " reads text, and there is no tokenizer"),
                     "pass --tokenizer, or copy tokenizer.json from the base model");
  }
}

ScoreFunction make_score(const PpoOptions& options, const std::optional<Tokenizer>& tokenizer,
                         const std::vector<std::string>& others) {
  if (reward_name(options).empty()) {
    return {};
  }
  return [reward = make_reward(options), &tokenizer,
          &others](std::span<const Experience> experiences) {
    std::vector<JudgedAnswer> answers;
    for (const Experience& experience : experiences) {
      answers.push_back(judged(experience, tokenizer, others.at(experience.row)));
    }
    return reward->score(answers);
  };
}

}  // namespace reknit
