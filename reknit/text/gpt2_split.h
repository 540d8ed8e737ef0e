// The pieces of GPT-2's split pattern, found without a regular expression where the text is
// ASCII.
#pragma once

#include <cstddef>
#include <string_view>

namespace reknit {

/// The end of the piece of kGpt2Pattern that begins at `begin` (< text.size()): what the
/// pattern matches there. npos if that depends on a character outside ASCII.
size_t gpt2_piece_end(std::string_view text, size_t begin);

}  // namespace reknit
