// The rewards that are built in.
#include "reknit/rlhf/reward.h"

#include <pcre2.h>

#include "reknit/base/error.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

constexpr const char* kHelp = "the rules are length:N, contains:TEXT, regex:PATTERN and json";

using Rule = std::function<double(const JudgedAnswer&)>;

class RuleReward : public Reward {
 public:
  explicit RuleReward(Rule rule) : rule_(std::move(rule)) {}

  std::vector<double> score(std::span<const JudgedAnswer> answers) override {
    std::vector<double> scores;
    for (const JudgedAnswer& answer : answers) {
      scores.push_back(rule_(answer));
    }
    return scores;
  }

 private:
  Rule rule_;
};

Rule length_rule(const std::string& rule, const std::string& argument) {
  int64_t target = 0;
  const char* end = argument.data() + argument.size();
  const auto parsed = std::from_chars(argument.data(), end, target);
  if (parsed.ec != std::errc() || parsed.ptr != end || target < 1) {
    throw UsageError(str("--reward-rule ", rule, ": \"", argument, "\" is no length of at least 1"),
                     "write the tokens that an answer should have: length:64");
  }
  return [target](const JudgedAnswer& answer) {
    const auto length = static_cast<int64_t>(answer.tokens.size()) - (answer.ended ? 1 : 0);
    return -std::abs(static_cast<double>(length - target)) / static_cast<double>(target);
  };
}

Rule regex_rule(const std::string& rule, const std::string& pattern) {
  int error = 0;
  size_t offset = 0;
  const std::shared_ptr<pcre2_code> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr),
      pcre2_code_free);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(error, text.data(), text.size());
    throw UsageError(str("--reward-rule ", rule, " is no pattern: at byte ", offset, " of it, ",
                         reinterpret_cast<const char*>(text.data())),
                     "patterns are those of PCRE2, as in Perl");
  }
  const std::shared_ptr<pcre2_match_data> data(pcre2_match_data_create(1, nullptr),
                                               pcre2_match_data_free);
  return [rule, code, data](const JudgedAnswer& answer) {
    const std::string& text = answer.completion;
    const int found = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), 0, 0, data.get(), nullptr);
    // Decoded answers are valid UTF-8, so what is left are the limits on backtracking.
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
      throw UsageError(str("--reward-rule ", rule, " gives up on an answer of ", text.size(),
                           " bytes (PCRE2 error ", found, ")"),
                       "write it without nested repetitions");
    }
    return found >= 0 ? 1.0 : 0.0;
  };
}

double is_json(const JudgedAnswer& answer) {
  return nlohmann::json::accept(answer.completion) ? 1.0 : 0.0;
}

std::pair<std::string, std::string> split_rule(const std::string& rule) {
  const size_t colon = rule.find(':');
  return {rule.substr(0, colon), colon == std::string::npos ? "" : rule.substr(colon + 1)};
}

Rule parse_rule(const std::string& rule) {
  const auto [name, argument] = split_rule(rule);
  if (rule == "json") {
    return is_json;
  }
  if (name == "length") {
    return length_rule(rule, argument);
  }
  if (name == "regex" && !argument.empty()) {
    return regex_rule(rule, argument);
  }
  if (name == "contains" && !argument.empty()) {
    return [text = argument](const JudgedAnswer& answer) {
      return answer.completion.find(text) != std::string::npos ? 1.0 : 0.0;
    };
  }
  throw UsageError(str("--reward-rule ", rule, ": there is no such rule"), kHelp);
}

}  // namespace

std::unique_ptr<Reward> make_rule_reward(const std::string& rule) {
  return std::make_unique<RuleReward>(parse_rule(rule));
}

bool rule_reads_text(const std::string& rule) {
  return split_rule(rule).first != "length";
}

}  // namespace reknit
