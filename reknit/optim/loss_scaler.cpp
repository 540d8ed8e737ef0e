#include "reknit/optim/loss_scaler.h"

#include <algorithm>

namespace reknit {

LossScaler::LossScaler(LossScalerSettings settings)
    : settings_(settings), scale_(settings.initial), hysteresis_(settings.hysteresis) {}

bool LossScaler::update(bool overflow) {
  const int64_t step = step_++;
  if (!settings_.dynamic) {
    return true;
  }
  if (overflow) {
    last_overflow_ = step;
    if (hysteresis_ > 1) {
      --hysteresis_;
      return true;
    }
    const bool at_floor = scale_ <= settings_.minimum;
    scale_ = std::max(scale_ / 2, settings_.minimum);
    return !at_floor;
  }
  if (settings_.consecutive_hysteresis) {
    hysteresis_ = settings_.hysteresis;
  }
  const int64_t clean = step - last_overflow_ - 1;
  if (clean > 0 && clean % settings_.window == 0) {
    scale_ *= 2;
    hysteresis_ = settings_.hysteresis;
  }
  return true;
}

void LossScaler::restore(const State& state) {
  if (settings_.dynamic) {
    scale_ = state.scale;
  }
  step_ = state.step;
  last_overflow_ = state.last_overflow;
  hysteresis_ = state.hysteresis;
}

}  // namespace reknit
