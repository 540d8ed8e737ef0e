// The printable alphabet in which byte-level vocabularies write bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace reknit {

/// The letters that stand for `bytes`, as UTF-8 (a space becomes U+0120).
std::string to_byte_letters(std::string_view bytes);

/// The bytes that `letters` stand for; nothing if a character is no letter of the
/// alphabet. `letters` is valid UTF-8.
std::optional<std::string> from_byte_letters(std::string_view letters);

}  // namespace reknit
