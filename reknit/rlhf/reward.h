// Rewards that are no model: a rule that is built in, or a program of the user's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reknit {

/// What a reward is told of an answer.
struct JudgedAnswer {
  std::string prompt;      ///< text; empty without a tokenizer, like `completion`
  std::string completion;  ///< without the end token's text
  std::vector<int64_t> prompt_tokens;
  std::vector<int64_t> tokens;  ///< of the answer, an end token included
  bool ended = false;           ///< by the end token, which is the last one then
  std::string_view other;       ///< the row's other keys: text of a JSON object
};

/// Judges whole answers, each by itself: what an answer is worth must not depend on those
/// beside it, otherwise results depend on the number of ranks. One thread uses it.
class Reward {
 public:
  virtual ~Reward() = default;
  /// One finite number for each answer, in order. Blocks.
  virtual std::vector<double> score(std::span<const JudgedAnswer> answers) = 0;
};

/// length:N     -|n - N| / N for an answer of n tokens, the end token not counted
/// contains:T   1 where the answer contains the text T, else 0
/// regex:P      1 where the PCRE2 pattern P is found in the answer, else 0
/// json         1 where the answer is one JSON value, else 0
/// UsageError for anything else.
std::unique_ptr<Reward> make_rule_reward(const std::string& rule);
/// True for the rules that read text, so that a tokenizer must be there.
bool rule_reads_text(const std::string& rule);

/// A program that runs as long as the Reward: it is given one line of JSON per answer on its
/// standard input,
///   {"prompt", "completion", "prompt_tokens", "tokens", "finish", "index", "count", ...}
/// (`index` of `count` answers that are asked together; then the row's other keys), and
/// prints one line per answer, in order: a number, or {"reward": number}. Its standard error
/// is ours. arguments[0] is looked up in PATH; `name` stands in the errors.
/// InputError for a line that is no such number; CommError if it cannot be started, ends
/// early, or is silent for `timeout`. The destructor closes its input, gives it a second
/// to end, and ends it.
std::unique_ptr<Reward> make_program_reward(const std::vector<std::string>& arguments,
                                            const std::string& name,
                                            std::chrono::milliseconds timeout);

/// The program that a shell makes of `command`.
std::vector<std::string> shell_program(const std::string& command);
/// The program that has the interpreter `python` call `function` of `file` once for the answers
/// that are asked together: function(rows) gets the decoded lines and returns a number for each.
std::vector<std::string> python_program(const std::string& python, const std::string& file,
                                        const std::string& function);

}  // namespace reknit
