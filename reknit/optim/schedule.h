// Learning-rate schedules: pure functions of how far a run has come.
#pragma once

#include <cstdint>
#include <optional>
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
  kOneCycle,      ///< OneCycle
  kLrRangeTest,   ///< LRRangeTest
  kMegatronConstant,
  kMegatronLinear,
  kMegatronCosine,
  kMegatronInverseSquareRoot,  ///< Megatron's: warm-up to lr, then decay to min_lr at total
};

/// DeepSpeed's OneCycle: the rate goes from min_lr to max_lr and back while the first beta
/// goes the other way, then both decay.
struct OneCycle {
  int64_t first_steps = 2000;
  int64_t second_steps = 2000;
  int64_t first_stairs = 0;  ///< 0: no stairs
  int64_t second_stairs = 0;
  int64_t decay_steps = 0;  ///< 0: no decay
  double decay_lr_rate = 0.0;
  bool cycle_momentum = true;
  double min_momentum = 0.8;
  double max_momentum = 0.9;
  double decay_momentum_rate = 0.0;
};

/// DeepSpeed's LRRangeTest: min_lr * (1 + rate * updates / steps).
struct LrRangeTest {
  int64_t steps = 2000;
  double rate = 1.0;
  bool staircase = false;
};

struct Betas {
  double beta1, beta2;
};

/// `lr` is what the optimizer was given; the schedule turns it into the rate of update i.
///
/// DeepSpeed's kinds give what its engine uses: a warm-up counts from the second update,
/// since the first one runs at min_lr (WarmupCosineLR: 0) before the schedule has begun.
struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warmup = 0;             ///< updates; Megatron's: any unit that the positions have
  int64_t total = 0;              ///< the same; needed by the decaying kinds
  double min_lr = 0.0;            ///< WarmupLR, WarmupDecayLR, OneCycle, LRRangeTest, Megatron's
  double max_lr = -1.0;           ///< WarmupLR, WarmupDecayLR, Megatron's (< 0: `lr`), OneCycle
  bool log_warmup = true;         ///< DeepSpeed's kinds; false: linear
  double warmup_min_ratio = 0.0;  ///< WarmupCosineLR
  double cos_min_ratio = 1e-4;    ///< WarmupCosineLR
  OneCycle cycle = {};
  LrRangeTest range = {};

  /// The rate of the update at position `i`: updates before it, or for Megatron's kinds
  /// what was counted before it in their unit (samples, tokens).
  double at(int64_t i, double lr) const;
  /// What OneCycle makes of the optimizer's betas. UsageError once the first one has
  /// grown to 1.
  std::optional<Betas> betas(int64_t i) const;

  /// "constant", "cosine", "WarmupLR", ...; UsageError naming the known ones.
  static ScheduleKind parse(const std::string& name);
  /// Megatron's --lr-decay-style: constant, linear, cosine, inverse-square-root.
  static ScheduleKind parse_megatron(const std::string& style);
  /// The same backwards, of one of Megatron's kinds.
  static std::string megatron_name(ScheduleKind kind);
};

/// Megatron's growth of the weight decay from `start` to `end` over `total` positions.
struct DecayRamp {
  enum class Style { kConstant, kLinear, kCosine };
  Style style = Style::kConstant;
  double start = 0.01;
  double end = 0.01;
  int64_t total = 0;

  double at(int64_t i) const;
  /// --weight-decay-incr-style: constant, linear, cosine.
  static Style parse(const std::string& style);
  static std::string name(Style style);
};

}  // namespace reknit
