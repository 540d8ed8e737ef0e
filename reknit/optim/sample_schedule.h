// Megatron's learning-rate schedule: a pure function of the samples trained on so far.
#pragma once

#include <cstdint>
#include <string>

namespace reknit {

enum class DecayStyle { kConstant, kLinear, kCosine, kInverseSquareRoot };

/// Rises from 0 to max_lr over the first `warmup` samples; then falls to min_lr at `end`, and
/// stays there. kConstant stays at max_lr.
struct SampleSchedule {
  DecayStyle style = DecayStyle::kConstant;
  double max_lr = 0;
  double min_lr = 0;
  int64_t warmup = 0;  ///< samples
  int64_t end = 0;     ///< samples; above `warmup`

  /// The rate of an update before which updates were made from `samples` samples.
  double at(int64_t samples) const;

  /// "constant", "linear", "cosine", "inverse-square-root"; UsageError for another one.
  static DecayStyle parse(const std::string& name);
};

}  // namespace reknit
