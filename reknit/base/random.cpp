#include "reknit/base/random.h"

#include <cmath>
#include <numbers>

namespace reknit {

std::array<double, 2> normal_pair(Philox philox, uint64_t low, uint64_t high) {
  uint32_t w[4];
  philox.block(low, high, w);
  const double u = (static_cast<double>(w[0]) + (w[1] >> 1) * 0x1.0p-31 + 0x1.0p-33) * 0x1.0p-32;
  const double angle = 2.0 * std::numbers::pi * (static_cast<double>(w[2]) * 0x1.0p-32);
  const double radius = std::sqrt(-2.0 * std::log(u));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace reknit
