#include "reknit/checkpoint/checksum.h"

#include <array>
#include <bit>
#include <cstdio>
#include <cstring>

namespace reknit {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ull;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Full;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9ull;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63ull;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5ull;

template <class Word>
Word take(const char*& bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof(word));
  bytes += sizeof(word);
  return word;
}

uint64_t mix_lane(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

uint64_t merge_lane(uint64_t sum, uint64_t lane) {
  return (sum ^ mix_lane(0, lane)) * kPrime1 + kPrime4;
}

// Four lanes over the stripes of 32 bytes; leaves `next` at the first byte after them.
uint64_t sum_stripes(const char*& next, const char* end) {
  std::array<uint64_t, 4> lanes{kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  while (end - next >= 32) {
    for (uint64_t& lane : lanes) {
      lane = mix_lane(lane, take<uint64_t>(next));
    }
  }
  uint64_t sum = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
                 std::rotl(lanes[3], 18);
  for (const uint64_t lane : lanes) {
    sum = merge_lane(sum, lane);
  }
  return sum;
}

}  // namespace

uint64_t checksum(std::string_view bytes) {
  const char* next = bytes.data();
  const char* end = next + bytes.size();
  uint64_t sum = bytes.size() >= 32 ? sum_stripes(next, end) : kPrime5;
  sum += bytes.size();
  while (end - next >= 8) {
    sum = std::rotl(sum ^ mix_lane(0, take<uint64_t>(next)), 27) * kPrime1 + kPrime4;
  }
  if (end - next >= 4) {
    sum = std::rotl(sum ^ take<uint32_t>(next) * kPrime1, 23) * kPrime2 + kPrime3;
  }
  while (next != end) {
    sum = std::rotl(sum ^ take<uint8_t>(next) * kPrime5, 11) * kPrime1;
  }
  sum = (sum ^ (sum >> 33)) * kPrime2;
  sum = (sum ^ (sum >> 29)) * kPrime3;
  return sum ^ (sum >> 32);
}

std::string checksum_text(uint64_t checksum) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(checksum));
  return text;
}

}  // namespace reknit
