#include "reknit/data/random_order.h"

#include <bit>
#include <utility>

#include "reknit/base/error.h"
#include "reknit/base/random.h"

namespace reknit {

RandomOrder::RandomOrder(uint64_t key, int64_t size) : size_(size) {
  REKNIT_INVARIANT(size >= 1, "an order of ", size, " entries");
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
  const Philox philox{mix(key, static_cast<uint64_t>(size))};
  for (int round = 0; round < kRounds; ++round) {
    uint32_t words[4];
    philox.block(static_cast<uint64_t>(round), 0, words);
    keys_[round] = static_cast<uint64_t>(words[0]) << 32 | words[1];
  }
}

int64_t RandomOrder::operator()(int64_t place) const {
  auto value = static_cast<uint64_t>(place);
  do {
    int high_bits = left_bits_;
    int low_bits = right_bits_;
    for (const uint64_t key : keys_) {
      const uint64_t low = value & ((uint64_t{1} << low_bits) - 1);
      const uint64_t high = value >> low_bits;
      const uint64_t changed = high ^ (mix(key, low) & ((uint64_t{1} << high_bits) - 1));
      value = low << high_bits | changed;
      std::swap(high_bits, low_bits);
    }
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

}  // namespace reknit
