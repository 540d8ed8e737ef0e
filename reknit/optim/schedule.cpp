#include "reknit/optim/schedule.h"

#include "reknit/base/error.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace reknit {
namespace {

struct Named {
  const char* name;
  ScheduleKind kind;
};
constexpr Named kNames[] = {{"constant", ScheduleKind::kConstant},
                            {"constant_with_warmup", ScheduleKind::kConstantWithWarmup},
                            {"linear", ScheduleKind::kLinear},
                            {"cosine", ScheduleKind::kCosine},
                            {"WarmupLR", ScheduleKind::kWarmup},
                            {"WarmupDecayLR", ScheduleKind::kWarmupDecay},
                            {"WarmupCosineLR", ScheduleKind::kWarmupCosine}};

double half_cosine(double progress) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

// Part `done` of `whole`, which may be 0.
double fraction(int64_t done, int64_t whole) {
  return static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, whole));
}

// DeepSpeed's warm-up factor in [0, 1); `steps` is at least 2.
double warmup_factor(int64_t i, int64_t steps, bool log_warmup) {
  return log_warmup ? std::log(static_cast<double>(i + 1)) / std::log(static_cast<double>(steps))
                    : fraction(i, steps);
}

// transformers' kinds: a factor of lr.
double plain_factor(const Schedule& s, int64_t i) {
  if (i < s.warmup) {
    return fraction(i, s.warmup);
  }
  const double progress = fraction(i - s.warmup, s.total - s.warmup);
  switch (s.kind) {
    case ScheduleKind::kLinear:
      return std::max(0.0, 1.0 - progress);
    case ScheduleKind::kCosine:
      return std::max(0.0, half_cosine(std::min(1.0, progress)));
    default:
      return 1.0;
  }
}

double warmup_lr(const Schedule& s, int64_t i, double lr) {
  const double max_lr = s.max_lr < 0 ? lr : s.max_lr;
  const int64_t steps = std::max<int64_t>(2, s.warmup);
  double factor = 1.0;
  if (i < steps) {
    factor = warmup_factor(i, steps, s.log_warmup);
  } else if (s.kind == ScheduleKind::kWarmupDecay) {
    factor = std::max(0.0, fraction(s.total - i, s.total - steps));
  }
  return s.min_lr + (max_lr - s.min_lr) * factor;
}

double warmup_cosine_lr(const Schedule& s, int64_t i, double lr) {
  const int64_t steps = std::max<int64_t>(2, s.warmup);
  if (i < steps) {
    const double factor = warmup_factor(i, steps, s.log_warmup);
    return lr * (s.warmup_min_ratio + (1.0 - s.warmup_min_ratio) * factor);
  }
  const double progress = std::min(1.0, fraction(i - steps + 1, s.total - steps));
  return lr * std::max(0.0, s.cos_min_ratio + (1.0 - s.cos_min_ratio) * half_cosine(progress));
}

}  // namespace

double Schedule::at(int64_t i, double lr) const {
  switch (kind) {
    case ScheduleKind::kConstant:
      return lr;
    case ScheduleKind::kConstantWithWarmup:
    case ScheduleKind::kLinear:
    case ScheduleKind::kCosine:
      return lr * plain_factor(*this, i);
    case ScheduleKind::kWarmup:
    case ScheduleKind::kWarmupDecay:
      return warmup_lr(*this, i, lr);
    case ScheduleKind::kWarmupCosine:
      return warmup_cosine_lr(*this, i, lr);
  }
  return lr;
}

ScheduleKind Schedule::parse(const std::string& name) {
  std::string known;
  for (const Named& named : kNames) {
    if (name == named.name) {
      return named.kind;
    }
    known += str(known.empty() ? "" : ", ", named.name);
  }
  throw UsageError(str("unknown schedule \"", name, "\""), str("known schedules: ", known));
}

}  // namespace reknit
