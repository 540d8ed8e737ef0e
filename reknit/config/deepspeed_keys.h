// Every key of a DeepSpeed config, declared once.
#pragma once

#include "reknit/config/deepspeed.h"

#include <limits>
#include <span>
#include <string_view>
#include <variant>

namespace reknit {

enum class KeyKind {
  kBool,
  kInteger,  ///< whole; 5e8 is one, 0.5 is not
  kNumber,   ///< finite
  kText,
  kChoice,  ///< one of `choices`, in any case
  kNumberList,
  kTextList,
  kSection,      ///< an object whose keys are declared too
  kOpenSection,  ///< an object that Reknit does not look into, beyond "enabled"
};

enum class KeyFate {
  kImplemented,
  kNoMeaning,  ///< accepted; another value than the default gets a one-line note
  kRefused,    ///< another value than the default is an error
};

/// Where a value lands in a DeepSpeedConfig.
using KeyTarget =
    std::variant<std::monostate, bool*, std::optional<bool>*, int64_t*, double*, std::string*,
                 std::optional<int64_t>*, std::optional<double>*, std::optional<std::string>*,
                 std::vector<double>*, std::vector<std::string>*>;

struct KeySpec {
  std::string_view path;  ///< "zero_optimization.stage"
  KeyKind kind;
  std::string_view default_json;  ///< "null": none
  std::string_view sentence;      ///< what it means
  KeyFate fate = KeyFate::kImplemented;
  std::string_view reason = {};  ///< for the other two fates: why, and what to do instead
  KeyTarget (*target)(DeepSpeedConfig&) = nullptr;  ///< for implemented keys that hold a value
  std::string_view choices = {};                    ///< "fp32|fp16|bf16"
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();

  /// The last part of the path.
  std::string_view name() const { return path.substr(path.rfind('.') + 1); }
  /// What is before it; empty at the top level.
  std::string_view parent() const {
    const size_t dot = path.rfind('.');
    return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
  }
};

/// A name of other days, or another name that DeepSpeed takes.
struct KeyAlias {
  std::string_view path;
  std::string_view replacement;
  bool deprecated = true;
};

/// In the order of DeepSpeed's documentation; a section comes before its keys.
const std::vector<KeySpec>& deepspeed_keys();
std::span<const KeyAlias> deepspeed_aliases();

/// nullptr if there is no such key.
const KeySpec* find_key(std::string_view path);
/// The declared path (or alias) nearest to `path`: a sibling within a small edit
/// distance, else the place where a key of this very name lives. Empty if none is near.
std::string nearest_key(std::string_view path);

/// Insertions, deletions and changes of one letter that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b);

/// The one of `words` ("a|b|c") nearest to `word` in any case; empty if none is near.
std::string nearest_word(std::string_view word, std::string_view words);

/// The table as the documentation shows it.
std::string deepspeed_keys_markdown();

/// The parts of the table, one per source file.
std::vector<KeySpec> general_keys();
std::vector<KeySpec> zero_keys();
std::vector<KeySpec> training_keys();
std::vector<KeySpec> optimizer_and_schedule_keys();

}  // namespace reknit
