// The printable alphabet in which byte-level vocabularies write bytes.
#include "reknit/text/byte_level.h"

#include <array>

#include "reknit/text/utf8.h"

namespace reknit {
namespace {

// A byte that is printable in Latin-1 stands for itself; the other 68 are
// numbered from U+0100 on.
struct Alphabet {
  std::array<std::string, 256> letter;
  std::array<int, 0x144> byte;

  Alphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (char32_t value = 0; value < 256; ++value) {
      const bool printable =
          (value >= '!' && value <= '~') || (value >= 0xA1 && value <= 0xFF && value != 0xAD);
      const char32_t code_point = printable ? value : next++;
      append_utf8(letter[value], code_point);
      byte[code_point] = static_cast<int>(value);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet one;
  return one;
}

}  // namespace

std::string to_byte_letters(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) {
    out += alphabet().letter[static_cast<uint8_t>(byte)];
  }
  return out;
}

std::optional<std::string> from_byte_letters(std::string_view letters) {
  std::string out;
  for (size_t position = 0; position < letters.size();) {
    const Utf8Step step = utf8_step(letters, position);
    if (!step.valid || step.code_point >= alphabet().byte.size() ||
        alphabet().byte[step.code_point] < 0) {
      return std::nullopt;
    }
    out.push_back(static_cast<char>(alphabet().byte[step.code_point]));
    position += step.size;
  }
  return out;
}

}  // namespace reknit
