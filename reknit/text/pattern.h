// Split patterns: Oniguruma's syntax, as tokenizer.json writes it, in PCRE2's.
#pragma once

#include <string>
#include <string_view>

namespace reknit {

/// A PCRE2 pattern (for PCRE2_UTF without PCRE2_UCP) that matches what Oniguruma
/// matches for `pattern`. Classes in classes are flattened, \s is Unicode's white
/// space, and \p{L} and \p{N} are those of Unicode 16 even where PCRE2 is older.
/// Throws InputError that names the construct for anything that is not known to
/// mean the same in both.
std::string to_pcre2(std::string_view pattern);

/// The characters of \w in Rust's regex crate, as a PCRE2 class.
std::string word_class();

/// Unicode's White_Space.
bool is_white_space(char32_t code_point);

}  // namespace reknit
