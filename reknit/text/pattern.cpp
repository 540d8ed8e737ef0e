// Split patterns: Oniguruma's syntax, as tokenizer.json writes it, in PCRE2's.
#include "reknit/text/pattern.h"

#include <array>
#include <cstdio>

#include "reknit/base/error.h"
#include "reknit/text/utf8.h"

namespace reknit {
namespace {

constexpr const char* kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// ASCII first: PCRE2 looks those up in a bit map. The ranges are what Unicode 15
// and 16 added to Unicode 14, the version of the oldest PCRE2 that we support.
constexpr const char* kLetters =
    R"(a-zA-Z\p{L}\x{1c89}-\x{1c8a}\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{105c0}-\x{105f3})"
    R"(\x{10d4a}-\x{10d65}\x{10d6f}-\x{10d85}\x{10ec2}-\x{10ec4}\x{1123f}-\x{11240})"
    R"(\x{11380}-\x{11389}\x{1138b}\x{1138e}\x{11390}-\x{113b5}\x{113b7}\x{113d1}\x{113d3})"
    R"(\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10}\x{11f12}-\x{11f33}\x{1342f})"
    R"(\x{13441}-\x{13446}\x{13460}-\x{143fa}\x{16100}-\x{1611d}\x{16d40}-\x{16d6c}\x{18cff})"
    R"(\x{1b132}\x{1b155}\x{1df25}-\x{1df2a}\x{1e030}-\x{1e06d}\x{1e4d0}-\x{1e4eb})"
    R"(\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
constexpr const char* kNumbers =
    R"(0-9\p{N}\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59})"
    R"(\x{16130}-\x{16139}\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1d2c0}-\x{1d2d3})"
    R"(\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})";

constexpr std::array<std::string_view, 6> kGroups = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i:"};

bool is_one_of(char32_t c, std::string_view set) {
  return c < 0x80 && c != 0 && set.find(static_cast<char>(c)) != std::string_view::npos;
}

// An escape: one character, or a class that stands for many.
struct Escape {
  char32_t literal = 0;
  const char* members = nullptr;
  bool negated = false;
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {
    if (const size_t bad = first_invalid_utf8(pattern); bad != std::string_view::npos) {
      throw InputError(str("the tokenizer's split pattern is not UTF-8 at byte ", bad));
    }
  }

  std::string run() {
    while (!done()) {
      item();
    }
    return std::move(out_);
  }

 private:
  bool done() const { return position_ == pattern_.size(); }

  [[noreturn]] void refuse(std::string_view what) const {
    throw InputError(str("the tokenizer's split pattern '", pattern_, "' uses ", what, " at byte ",
                         position_, ", which is not supported"));
  }

  char32_t peek() const { return done() ? 0 : utf8_step(pattern_, position_).code_point; }

  char32_t take() {
    if (done()) {
      refuse("an unfinished construct");
    }
    const Utf8Step step = utf8_step(pattern_, position_);
    position_ += step.size;
    return step.code_point;
  }

  bool starts(std::string_view text) const { return pattern_.substr(position_).starts_with(text); }

  static std::string literal(char32_t c) {
    if (c < 0x80 && (std::isalnum(static_cast<int>(c)) || c == ' ')) {
      return std::string(1, static_cast<char>(c));
    }
    std::array<char, 16> text;
    std::snprintf(text.data(), text.size(), "\\x{%x}", static_cast<unsigned>(c));
    return text.data();
  }

  void item() {
    if (starts("[")) {
      take();
      out_ += '[';
      character_class(0);
      out_ += ']';
    } else if (starts("(")) {
      group();
      return;
    } else if (starts("\\")) {
      const Escape escape = this->escape();
      out_ += escape.members ? str(escape.negated ? "[^" : "[", escape.members, "]")
                             : literal(escape.literal);
    } else if (starts(".")) {
      take();
      out_ += R"([^\x{a}])";
    } else if (starts(")") || starts("|")) {
      out_ += static_cast<char>(take());
      if (out_.back() == '|') {
        return;
      }
    } else if (is_one_of(peek(), "^$*+?{")) {
      refuse(str("'", static_cast<char>(peek()), "'"));
    } else {
      out_ += literal(take());
    }
    quantifier();
  }

  void group() {
    for (const std::string_view opening : kGroups) {
      if (starts(opening)) {
        position_ += opening.size();
        out_ += opening;
        return;
      }
    }
    if (starts("(?") || starts("(*")) {
      refuse(str("'", pattern_.substr(position_, 3), "'"));
    }
    take();
    out_ += "(?:";
  }

  // At most one quantifier, lazy or possessive forms included.
  void quantifier() {
    const bool interval = starts("{");
    if (interval) {
      this->interval();
    } else if (is_one_of(peek(), "*+?")) {
      out_ += static_cast<char>(take());
    } else {
      return;
    }
    if (starts("?") || (starts("+") && !interval)) {
      out_ += static_cast<char>(take());
    }
    if (is_one_of(peek(), "*+?{")) {
      refuse("a quantifier of a quantifier");
    }
  }

  void interval() {
    size_t end = position_ + 1;
    const auto digits = [&] {
      const size_t start = end;
      while (end < pattern_.size() && std::isdigit(static_cast<unsigned char>(pattern_[end]))) {
        ++end;
      }
      return end - start;
    };
    bool good = digits() > 0;
    if (good && pattern_.substr(end).starts_with(",")) {
      ++end;
      digits();
    }
    if (!good || !pattern_.substr(end).starts_with("}") || end - position_ > 8) {
      refuse("'{' that is no short repeat count");
    }
    out_ += pattern_.substr(position_, end + 1 - position_);
    position_ = end + 1;
  }

  Escape escape() {
    take();
    const char32_t c = take();
    switch (c) {
      case 's':
      case 'S':
        return {0, kWhiteSpace, c == 'S'};
      case 'p':
      case 'P':
        return {0, property(), c == 'P'};
      case 'r':
        return {'\r'};
      case 'n':
        return {'\n'};
      case 't':
        return {'\t'};
      default:
        if (c >= 0x80 || std::isalnum(static_cast<int>(c)) || c < ' ') {
          refuse(c > ' ' && c < 0x7F ? str("'\\", static_cast<char>(c), "'") : "an odd escape");
        }
        return {c};
    }
  }

  const char* property() {
    if (starts("{L}") || starts("{N}")) {
      const bool letters = starts("{L}");
      position_ += 3;
      return letters ? kLetters : kNumbers;
    }
    refuse(str("the property '\\p",
               pattern_.substr(position_, pattern_.find('}', position_) + 1 - position_), "'"));
  }

  // Members up to the closing bracket; the opening one is taken already.
  void character_class(int depth) {
    if (depth > 8) {
      refuse("classes nested too deep");
    }
    if (starts("^")) {
      take();
      if (depth > 0) {
        refuse("a negated class inside a class");
      }
      out_ += '^';
    }
    if (starts("]")) {
      refuse("an empty class");
    }
    while (!starts("]")) {
      if (starts("&&") || starts("[:")) {
        refuse(str("'", pattern_.substr(position_, 2), "' inside a class"));
      }
      if (starts("[")) {
        take();
        character_class(depth + 1);
      } else {
        member();
      }
    }
    take();
  }

  void member() {
    const Escape first = class_character();
    if (first.members != nullptr) {
      out_ += first.members;
      return;
    }
    if (!starts("-") || pattern_.substr(position_).starts_with("-]")) {
      out_ += literal(first.literal);
      return;
    }
    take();
    if (starts("[")) {
      refuse("a range that ends in a class");
    }
    const Escape last = class_character();
    if (last.members != nullptr || last.literal < first.literal) {
      refuse("a range that is none");
    }
    out_ += literal(first.literal) + "-" + literal(last.literal);
  }

  Escape class_character() {
    if (!starts("\\")) {
      return {take()};
    }
    const Escape found = escape();
    if (found.negated) {
      refuse("a negated class inside a class");
    }
    return found;
  }

  std::string_view pattern_;
  size_t position_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2(std::string_view pattern) {
  return Translator(pattern).run();
}

std::string word_class() {
  return str("[", kLetters, kNumbers, R"(\p{M}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149})",
             R"(\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}\x{200c}\x{200d}])");
}

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace reknit
