// Typed reading of a tokenizer's JSON files; errors name the file. Not for other folders.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "reknit/base/error.h"
#include "reknit/base/json_problem.h"
#include "reknit/text/added_tokens.h"

namespace reknit {

// Far above any vocabulary; keeps a damaged id from asking for all memory.
inline constexpr int64_t kIdLimit = 1 << 22;

/// Everything throws InputError that begins with the file's name.
class TokenizerJsonReader {
 public:
  using json = nlohmann::json;

  explicit TokenizerJsonReader(std::string name) : name_(std::move(name)) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(str(name_, ": ", what));
  }

  [[noreturn]] void unsupported(const std::string& role, const std::string& type) const {
    throw InputError(str(name_, ": the ", role, " '", type, "' is not supported"),
                     "supported are byte-level BPE tokenizers as OPT, GPT-2, BLOOM and Llama 3 "
                     "use them");
  }

  nlohmann::json parse(std::string_view text) const {
    constexpr int kMaxDepth = 64;
    return parse_within(text, kMaxDepth, [this](const std::string& what) { fail(what); });
  }

  const json& object(const json& value, const std::string& what) const {
    if (!value.is_object()) {
      fail(str(what, " is a JSON ", value.type_name(), ", not an object"));
    }
    return value;
  }

  /// Null if absent or null.
  const json* optional(const json& parent, const char* key) const {
    const auto found = parent.find(key);
    return found == parent.end() || found->is_null() ? nullptr : &*found;
  }

  const json& member(const json& parent, const char* key, const std::string& what) const {
    if (const json* found = optional(parent, key)) {
      return *found;
    }
    fail(str(what, " has no '", key, "'"));
  }

  std::string text(const json& value, const std::string& what) const {
    if (!value.is_string()) {
      fail(str(what, " is a JSON ", value.type_name(), ", not a string"));
    }
    return value.get<std::string>();
  }

  bool flag(const json& parent, const char* key, bool fallback) const {
    const json* found = optional(parent, key);
    if (found != nullptr && !found->is_boolean()) {
      fail(str("'", key, "' is a JSON ", found->type_name(), ", not true or false"));
    }
    return found == nullptr ? fallback : found->get<bool>();
  }

  int64_t id(const json& value, const std::string& what) const {
    if (!value.is_number_integer()) {
      fail(str(what, " has an id that is a JSON ", value.type_name(), ", not a whole number"));
    }
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() < static_cast<uint64_t>(kIdLimit)
                          : value.get<int64_t>() >= 0 && value.get<int64_t>() < kIdLimit;
    if (!fits) {
      fail(str(what, " has the id ", value.dump(), ", outside 0 to ", kIdLimit - 1));
    }
    return value.get<int64_t>();
  }

  std::string type(const json& component, const std::string& role) const {
    return text(member(object(component, role), "type", role), str("the type of the ", role));
  }

  /// All but the id.
  AddedToken added_token(const json& entry) const {
    AddedToken token;
    token.content = text(member(entry, "content", "an added token"), "an added token");
    token.special = flag(entry, "special", false);
    token.single_word = flag(entry, "single_word", false);
    token.lstrip = flag(entry, "lstrip", false);
    token.rstrip = flag(entry, "rstrip", false);
    token.normalized = flag(entry, "normalized", !token.special);
    return token;
  }

 private:
  std::string name_;
};

}  // namespace reknit
