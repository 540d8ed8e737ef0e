// UTF-8: validation, code points, and the replacement of broken sequences.
#include "reknit/text/utf8.h"

#include <cstring>

namespace reknit {
namespace {

uint8_t byte_at(std::string_view text, size_t position) {
  return static_cast<uint8_t>(text[position]);
}

// Allowed second bytes of a lead byte: excludes overlong forms, surrogates and
// what lies above U+10FFFF.
struct Second {
  uint8_t low;
  uint8_t high;
};

Second second_bytes(uint8_t lead) {
  switch (lead) {
    case 0xE0:
      return {0xA0, 0xBF};
    case 0xED:
      return {0x80, 0x9F};
    case 0xF0:
      return {0x90, 0xBF};
    case 0xF4:
      return {0x80, 0x8F};
    default:
      return {0x80, 0xBF};
  }
}

size_t length_of(uint8_t lead) {
  if (lead >= 0xC2 && lead <= 0xDF) {
    return 2;
  }
  if (lead >= 0xE0 && lead <= 0xEF) {
    return 3;
  }
  return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t position) {
  const uint8_t lead = byte_at(text, position);
  if (lead < 0x80) {
    return {lead, 1, true, false};
  }
  const size_t length = length_of(lead);
  if (length == 0) {
    return {};
  }
  char32_t code_point = lead & (0x7F >> length);
  Second range = second_bytes(lead);
  for (size_t i = 1; i < length; ++i) {
    if (position + i == text.size()) {
      return {0, i, false, true};
    }
    const uint8_t next = byte_at(text, position + i);
    if (next < range.low || next > range.high) {
      return {0, i, false, false};
    }
    code_point = code_point << 6 | (next & 0x3F);
    range = {0x80, 0xBF};
  }
  return {code_point, length, true, false};
}

size_t first_invalid_utf8(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    if (position + 8 <= text.size()) {
      uint64_t eight;
      std::memcpy(&eight, text.data() + position, 8);
      if ((eight & 0x8080808080808080ull) == 0) {
        position += 8;
        continue;
      }
    }
    const Utf8Step step = utf8_step(text, position);
    if (!step.valid) {
      return position;
    }
    position += step.size;
  }
  return std::string_view::npos;
}

std::string utf8_lossy(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t position = 0; position < bytes.size();) {
    const Utf8Step step = utf8_step(bytes, position);
    out += step.valid ? bytes.substr(position, step.size) : kReplacement;
    position += step.size;
  }
  return out;
}

size_t utf8_settled(std::string_view bytes) {
  const size_t back = bytes.size() < 3 ? bytes.size() : 3;
  for (size_t start = bytes.size() - back; start < bytes.size(); ++start) {
    if (length_of(byte_at(bytes, start)) != 0) {
      const Utf8Step step = utf8_step(bytes, start);
      if (step.at_end) {
        return start;
      }
    }
  }
  return bytes.size();
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace reknit
