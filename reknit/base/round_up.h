// Sizes in whole units.
#pragma once

#include <cstdint>

namespace reknit {

/// The smallest multiple of `unit` that is not below `value`; neither is negative.
constexpr int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace reknit
