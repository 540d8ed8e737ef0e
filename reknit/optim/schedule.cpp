#include "reknit/optim/schedule.h"

#include "reknit/base/error.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

namespace reknit {
namespace {

template <class Kind>
struct Named {
  const char* name;
  Kind kind;
};
constexpr Named<ScheduleKind> kNames[] = {
    {"constant", ScheduleKind::kConstant},
    {"constant_with_warmup", ScheduleKind::kConstantWithWarmup},
    {"linear", ScheduleKind::kLinear},
    {"cosine", ScheduleKind::kCosine},
    {"WarmupLR", ScheduleKind::kWarmup},
    {"WarmupDecayLR", ScheduleKind::kWarmupDecay},
    {"WarmupCosineLR", ScheduleKind::kWarmupCosine},
    {"OneCycle", ScheduleKind::kOneCycle},
    {"LRRangeTest", ScheduleKind::kLrRangeTest}};
constexpr Named<ScheduleKind> kMegatronNames[] = {
    {"constant", ScheduleKind::kMegatronConstant},
    {"linear", ScheduleKind::kMegatronLinear},
    {"cosine", ScheduleKind::kMegatronCosine},
    {"inverse-square-root", ScheduleKind::kMegatronInverseSquareRoot}};
constexpr Named<DecayRamp::Style> kRampNames[] = {{"constant", DecayRamp::Style::kConstant},
                                                  {"linear", DecayRamp::Style::kLinear},
                                                  {"cosine", DecayRamp::Style::kCosine}};

template <class Kind>
Kind find(std::span<const Named<Kind>> names, const std::string& name, const char* what) {
  std::string known;
  for (const Named<Kind>& named : names) {
    if (name == named.name) {
      return named.kind;
    }
    known += str(known.empty() ? "" : ", ", named.name);
  }
  throw UsageError(str("unknown ", what, " \"", name, "\""), str("known: ", known));
}

template <class Kind>
std::string name_of(std::span<const Named<Kind>> names, Kind kind) {
  for (const Named<Kind>& named : names) {
    if (named.kind == kind) {
      return named.name;
    }
  }
  throw StateError("a schedule that is none of Megatron's has no name among them");
}

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

// `i` counts DeepSpeed's scheduler steps but one: -1 before the first.
double warmup_lr(const Schedule& s, int64_t i, double lr) {
  if (i < 0) {
    return s.min_lr;
  }
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
  if (i < 0) {
    return 0.0;
  }
  const int64_t steps = std::max<int64_t>(2, s.warmup);
  if (i < steps) {
    const double factor = warmup_factor(i, steps, s.log_warmup);
    return lr * (s.warmup_min_ratio + (1.0 - s.warmup_min_ratio) * factor);
  }
  const double progress = std::min(1.0, fraction(i - steps + 1, s.total - steps));
  return lr * std::max(0.0, s.cos_min_ratio + (1.0 - s.cos_min_ratio) * half_cosine(progress));
}

// How high the cycle stands at update i, in [0, 1].
double cycle_height(const OneCycle& c, int64_t i) {
  const int64_t at = i % (c.first_steps + c.second_steps);
  const bool up = at <= c.first_steps;
  const int64_t done = up ? at : c.first_steps + c.second_steps - at;
  const int64_t whole = up ? c.first_steps : c.second_steps;
  const int64_t stairs = up ? c.first_stairs : c.second_stairs;
  return stairs > 0 ? fraction(done * stairs / whole, stairs) : fraction(done, whole);
}

/// Decays after the cycle, each `rate` of what it was; 0 during it.
double decays(const OneCycle& c, int64_t i, double rate) {
  const int64_t after = i - c.first_steps - c.second_steps;
  return after > 0 && c.decay_steps > 0 ? rate * fraction(after, c.decay_steps) : 0.0;
}

double one_cycle_lr(const Schedule& s, int64_t i) {
  if (i > s.cycle.first_steps + s.cycle.second_steps) {
    return s.min_lr / (1.0 + decays(s.cycle, i, s.cycle.decay_lr_rate));
  }
  return s.min_lr + (s.max_lr - s.min_lr) * cycle_height(s.cycle, i);
}

double range_test_lr(const Schedule& s, int64_t i) {
  const double interval =
      s.range.staircase ? static_cast<double>(i / s.range.steps) : fraction(i, s.range.steps);
  return s.min_lr * (1.0 + s.range.rate * interval);
}

double megatron_lr(const Schedule& s, int64_t i, double own_lr) {
  const double lr = s.max_lr < 0 ? own_lr : s.max_lr;
  if (s.warmup > 0 && i <= s.warmup) {
    return lr * fraction(i, s.warmup);
  }
  if (s.kind == ScheduleKind::kMegatronConstant) {
    return lr;
  }
  if (i > s.total) {
    return s.min_lr;
  }
  if (s.kind == ScheduleKind::kMegatronInverseSquareRoot) {
    const auto warmup = static_cast<double>(std::max<int64_t>(1, s.warmup));
    return std::max(s.min_lr,
                    lr * std::sqrt(warmup / static_cast<double>(std::max<int64_t>(1, i))));
  }
  const double progress = fraction(i - s.warmup, s.total - s.warmup);
  const double left =
      s.kind == ScheduleKind::kMegatronLinear ? 1.0 - progress : half_cosine(progress);
  return s.min_lr + (lr - s.min_lr) * left;
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
      return warmup_lr(*this, i - 1, lr);
    case ScheduleKind::kWarmupCosine:
      return warmup_cosine_lr(*this, i - 1, lr);
    case ScheduleKind::kOneCycle:
      return one_cycle_lr(*this, i);
    case ScheduleKind::kLrRangeTest:
      return range_test_lr(*this, i);
    case ScheduleKind::kMegatronConstant:
    case ScheduleKind::kMegatronLinear:
    case ScheduleKind::kMegatronCosine:
    case ScheduleKind::kMegatronInverseSquareRoot:
      return megatron_lr(*this, i, lr);
  }
  return lr;
}

std::optional<Betas> Schedule::betas(int64_t i) const {
  constexpr double kSecondBeta = 0.99;  // DeepSpeed sets it with the first one
  if (kind != ScheduleKind::kOneCycle || !cycle.cycle_momentum) {
    return std::nullopt;
  }
  double momentum = cycle.min_momentum;  // the first update runs before the schedule has begun
  if (i > cycle.first_steps + cycle.second_steps) {
    momentum = cycle.max_momentum * (1.0 + decays(cycle, i, cycle.decay_momentum_rate));
  } else if (i > 0) {
    momentum =
        cycle.max_momentum - (cycle.max_momentum - cycle.min_momentum) * cycle_height(cycle, i);
  }
  if (momentum >= 1.0) {
    throw UsageError(str("the momentum of OneCycle has grown to ", momentum, " at update ", i),
                     "lower decay_mom_rate, or raise decay_step_size");
  }
  return Betas{momentum, kSecondBeta};
}

ScheduleKind Schedule::parse(const std::string& name) {
  return find<ScheduleKind>(kNames, name, "schedule");
}

ScheduleKind Schedule::parse_megatron(const std::string& style) {
  return find<ScheduleKind>(kMegatronNames, style, "decay style");
}

std::string Schedule::megatron_name(ScheduleKind kind) {
  return name_of<ScheduleKind>(kMegatronNames, kind);
}

double DecayRamp::at(int64_t i) const {
  const double progress = i >= total ? 1.0 : fraction(i, total);
  switch (style) {
    case Style::kConstant:
      return end;
    case Style::kLinear:
      return start + (end - start) * progress;
    case Style::kCosine:
      return start + (end - start) * half_cosine(1.0 - progress);
  }
  return end;
}

DecayRamp::Style DecayRamp::parse(const std::string& style) {
  return find<Style>(kRampNames, style, "weight decay style");
}

std::string DecayRamp::name(Style style) {
  return name_of<Style>(kRampNames, style);
}

}  // namespace reknit
