// UTF-8: validation, code points, and the replacement of broken sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace reknit {

/// What a decoder shows for bytes that are not UTF-8 (U+FFFD).
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// One step through a byte string: `size` bytes that are a whole code point
/// (`valid`), the longest beginning of one that is broken off, or one stray byte.
struct Utf8Step {
  char32_t code_point = 0;  ///< 0 unless valid
  size_t size = 1;
  bool valid = false;
  bool at_end = false;  ///< broken only because the string ends here
};

/// The step at `position` (< text.size()).
Utf8Step utf8_step(std::string_view text, size_t position);

/// Position of the first byte that is not part of a code point, npos if none.
size_t first_invalid_utf8(std::string_view text);

/// `bytes` with each maximal broken sequence replaced by one U+FFFD (the practice
/// that Unicode recommends, and what Rust's from_utf8_lossy does).
std::string utf8_lossy(std::string_view bytes);

/// Length of the longest prefix whose meaning later bytes cannot change: all of
/// `bytes`, less a sequence that is broken off at the end.
size_t utf8_settled(std::string_view bytes);

/// Appends the UTF-8 form of `code_point` (below 0x110000, no surrogate).
void append_utf8(std::string& out, char32_t code_point);

}  // namespace reknit
