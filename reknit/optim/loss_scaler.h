// Dynamic loss scaling for fp16: pure arithmetic, the same on every rank.
#pragma once

#include <cstdint>

namespace reknit {

struct LossScalerSettings {
  double initial = 65536.0;
  int64_t window = 1000;  ///< clean steps before the scale doubles
  int hysteresis = 2;     ///< overflows before the scale halves
  bool consecutive_hysteresis = false;
  double minimum = 1.0;
  bool dynamic = true;  ///< false: `initial` for ever
};

/// DeepSpeed's rule. An overflow spends hysteresis first, then halves the scale (never
/// below the minimum). Step i is clean; with n = i - last_overflow - 1, n > 0 and n a
/// multiple of the window the scale doubles and hysteresis is refilled.
class LossScaler {
 public:
  explicit LossScaler(LossScalerSettings settings);

  double scale() const { return scale_; }
  /// Takes note of one step. An overflow that would halve a scale at its minimum returns
  /// false: the run cannot go on.
  [[nodiscard]] bool update(bool overflow);

  /// Everything a checkpoint needs.
  struct State {
    double scale = 1.0;
    int64_t step = 0;
    int64_t last_overflow = -1;
    int hysteresis = 1;
  };
  State state() const { return {scale_, step_, last_overflow_, hysteresis_}; }
  /// A fixed scale stays that of the settings.
  void restore(const State& state);

 private:
  LossScalerSettings settings_;
  double scale_;
  int64_t step_ = 0;
  int64_t last_overflow_ = -1;
  int hysteresis_;
};

}  // namespace reknit
