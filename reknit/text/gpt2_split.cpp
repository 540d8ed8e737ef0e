#include "reknit/text/gpt2_split.h"

#include <array>
#include <cstdint>

namespace reknit {
namespace {

enum class Kind : uint8_t { kOther, kLetter, kDigit, kSpace, kBeyondAscii };

constexpr std::array<Kind, 256> make_kinds() {
  std::array<Kind, 256> kinds{};
  for (int c = 0; c < 256; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    kinds[c] = c >= 0x80                          ? Kind::kBeyondAscii
               : letter                           ? Kind::kLetter
               : c >= '0' && c <= '9'             ? Kind::kDigit
               : c == ' ' || (c >= 9 && c <= 0xD) ? Kind::kSpace
                                                  : Kind::kOther;
  }
  return kinds;
}

constexpr std::array<Kind, 256> kKinds = make_kinds();

Kind kind_at(std::string_view text, size_t position) {
  return kKinds[static_cast<uint8_t>(text[position])];
}

/// Where the run of `kind` that begins before `position` ends.
size_t run_end(std::string_view text, size_t position, Kind kind) {
  while (position < text.size() && kind_at(text, position) == kind) {
    ++position;
  }
  const bool decided = position == text.size() || kind_at(text, position) != Kind::kBeyondAscii;
  return decided ? position : std::string_view::npos;
}

/// Of 's 't 're 've 'm 'll 'd; 0 if none of them begins at `begin`.
size_t contraction_size(std::string_view text, size_t begin) {
  const std::string_view rest = text.substr(begin + 1, 2);
  if (rest.empty()) {
    return 0;
  }
  switch (rest[0]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    default:
      return rest == "re" || rest == "ve" || rest == "ll" ? 3 : 0;
  }
}

// White space up to the last character before a word: that one belongs to the word if it is a
// space, and is a piece of its own if not.
size_t space_end(std::string_view text, size_t begin) {
  const size_t end = run_end(text, begin, Kind::kSpace);
  const bool before_word = end < text.size();  // false for npos
  return before_word && end - begin > 1 ? end - 1 : end;
}

}  // namespace

size_t gpt2_piece_end(std::string_view text, size_t begin) {
  const Kind first = kind_at(text, begin);
  if (first == Kind::kSpace) {
    const bool joins =
        text[begin] == ' ' && begin + 1 < text.size() && kind_at(text, begin + 1) != Kind::kSpace;
    if (!joins) {
      return space_end(text, begin);
    }
    const Kind next = kind_at(text, begin + 1);
    return next == Kind::kBeyondAscii ? std::string_view::npos : run_end(text, begin + 2, next);
  }
  if (first == Kind::kBeyondAscii) {
    return std::string_view::npos;
  }
  if (text[begin] == '\'') {
    if (const size_t size = contraction_size(text, begin); size > 0) {
      return begin + size;
    }
  }
  return run_end(text, begin + 1, first);
}

}  // namespace reknit
