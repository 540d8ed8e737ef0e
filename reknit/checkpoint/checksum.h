// A 64-bit checksum that finds damaged files; no protection against intent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace reknit {

/// XXH64 with seed 0, as its specification (version 0.1.1) defines it.
uint64_t checksum(std::string_view bytes);

/// 16 hexadecimal digits.
std::string checksum_text(uint64_t checksum);

}  // namespace reknit
