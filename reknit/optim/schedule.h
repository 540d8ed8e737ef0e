// Learning-rate schedules: pure functions of the number of updates applied so far.
#pragma once

#include <cstdint>
#include <string>

namespace reknit {

enum class ScheduleKind {
  kConstant,
  kConstantWithWarmup,
  kLinear,
  kCosine,        ///< transformers' names: warm-up to 1, then decay to 0 at total
  kWarmup,        ///< DeepSpeed's WarmupLR
  kWarmupDecay,   ///< WarmupDecayLR
  kWarmupCosine,  ///< WarmupCosineLR
};

/// `lr` is what the optimizer was given; the schedule turns it into the rate of update i.
struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warmup = 0;             ///< updates
  int64_t total = 0;              ///< updates; needed by the decaying kinds
  double min_lr = 0.0;            ///< WarmupLR, WarmupDecayLR
  double max_lr = -1.0;           ///< the same; < 0: `lr`
  bool log_warmup = true;         ///< DeepSpeed's kinds; false: linear
  double warmup_min_ratio = 0.0;  ///< WarmupCosineLR
  double cos_min_ratio = 1e-4;    ///< WarmupCosineLR

  /// The rate of the update number `i` (from 0).
  double at(int64_t i, double lr) const;

  /// "constant", "cosine", "WarmupLR", ...; UsageError naming the known ones.
  static ScheduleKind parse(const std::string& name);
};

}  // namespace reknit
