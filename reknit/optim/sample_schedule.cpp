#include "reknit/optim/sample_schedule.h"

#include "reknit/base/error.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace reknit {

double SampleSchedule::at(int64_t samples) const {
  const auto x = static_cast<double>(samples);
  const auto warm = static_cast<double>(warmup);
  if (warmup > 0 && samples <= warmup) {
    return max_lr * x / warm;
  }
  if (style == DecayStyle::kConstant) {
    return max_lr;
  }
  if (samples > end) {
    return min_lr;
  }
  if (style == DecayStyle::kInverseSquareRoot) {
    return std::max(min_lr, max_lr * std::sqrt(std::max(warm, 1.0) / std::max(x, 1.0)));
  }
  const double done = (x - warm) / (static_cast<double>(end) - warm);
  const double left =
      style == DecayStyle::kLinear ? 1.0 - done : 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  return min_lr + (max_lr - min_lr) * left;
}

DecayStyle SampleSchedule::parse(const std::string& name) {
  constexpr const char* kNames[] = {"constant", "linear", "cosine", "inverse-square-root"};
  for (int style = 0; style < 4; ++style) {
    if (name == kNames[style]) {
      return static_cast<DecayStyle>(style);
    }
  }
  throw UsageError(str("unknown decay style \"", name, "\""),
                   "known ones: constant, linear, cosine, inverse-square-root");
}

}  // namespace reknit
