// Splits text into the pieces within which BPE merges.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace reknit {

/// A compiled split pattern. Thread-safe.
class Regex {
 public:
  /// `pattern` in PCRE2's syntax; throws InputError if PCRE2 refuses it.
  explicit Regex(const std::string& pattern);

  struct Span {
    size_t begin = 0;
    size_t end = 0;
  };

  /// Calls of one text from left to right. `text` is valid UTF-8 and outlives it.
  class Matches {
   public:
    Matches(const Regex& regex, std::string_view text);
    /// The next match, as Oniguruma's Rust binding iterates: an empty match right
    /// after the last one is none. False at the end.
    bool next(Span& span);
    /// The first match at or after `from`, whatever was found before.
    bool search(size_t from, Span& span);

   private:
    const Regex& regex_;
    std::string_view text_;
    std::shared_ptr<void> data_;
    size_t from_ = 0;
    size_t last_end_ = std::string_view::npos;
  };

 private:
  std::shared_ptr<void> code_;
  std::string pattern_;
  bool jit_ = false;
};

/// One `Split` pre-tokenizer of tokenizer.json, or ByteLevel's own pattern.
struct SplitSpec {
  std::string pattern;   ///< Oniguruma's syntax, or the text itself
  bool literal = false;  ///< `pattern` is the text itself
  bool removed = false;  ///< behaviour Removed: matches are dropped; else Isolated
  bool invert = false;   ///< what lies between matches counts as the match
};

/// The pattern of GPT-2's byte-level split.
extern const char* const kGpt2Pattern;

/// A list of splits, applied one after the other to every piece. Thread-safe.
class Splitter {
 public:
  explicit Splitter(const std::vector<SplitSpec>& specs);

  /// The pieces of `text` (valid UTF-8), in order, none empty, as views of it.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct Stage {
    Regex regex;
    bool keep_matches;
    bool keep_others;
    bool gpt2;  ///< kGpt2Pattern, every match kept: split_gpt2 does it
  };
  static void split_gpt2(const Regex& regex, std::string_view text,
                         std::vector<std::string_view>& pieces);
  std::vector<Stage> stages_;
};

}  // namespace reknit
