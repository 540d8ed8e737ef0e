// What each optimizer does to one element: the arithmetic that the CPU loops and the CUDA
// kernels share, and its constants, folded in double precision before they become floats.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define REKNIT_UPDATE_RULE __host__ __device__ __forceinline__
#else
#define REKNIT_UPDATE_RULE inline __attribute__((always_inline))
#endif

namespace reknit::kernels {

/// The constants of one update; which of them a rule reads is written at the rule.
struct RuleConstants {
  float beta1 = 0;
  float rest1 = 0;  ///< 1 - beta1
  float rest2 = 0;  ///< 1 - beta2
  float v_scale = 1;
  float eps = 0;
  float grad_part = 0;  ///< the step is grad_part * gradient + state_part * state
  float state_part = 1;
};

/// Elements [begin, end) and their own constants. The gradient is multiplied by scale number
/// `scale` first.
struct RuleRange {
  int64_t begin = 0;
  int64_t end = 0;
  float l2 = 0;    ///< times the master: joins the gradient
  float keep = 1;  ///< what decoupled decay leaves of the master
  float rate = 0;
  int64_t scale = 0;
};

/// One element. `grad` comes scaled; rules that only find a direction leave it there.
struct Cell {
  float master;
  float state[2];
  float grad;
};

enum class UpdateRule {
  kAdam,
  kAdagrad,
  kLion,
  kSgd,
  kSgdMomentum,
  kLambDirection,
  kMuonDirection,
  kApply
};

/// m and v move by (1 - beta); master * keep - rate * m / (sqrt(v) * v_scale + eps).
struct AdamRule {
  static constexpr int kStates = 2;
  static constexpr bool kDirection = false;
  static REKNIT_UPDATE_RULE void step(Cell& x, const RuleConstants& c, const RuleRange& r) {
    const float g = x.grad + r.l2 * x.master;
    x.state[0] += c.rest1 * (g - x.state[0]);
    x.state[1] += c.rest2 * (g * g - x.state[1]);
    x.master = x.master * r.keep - r.rate * x.state[0] / (sqrtf(x.state[1]) * c.v_scale + c.eps);
  }
};

/// Adam's step with its decay (l2) as the direction, for a length that is not known yet;
/// `rate` corrects the first moment.
struct LambDirectionRule {
  static constexpr int kStates = 2;
  static constexpr bool kDirection = true;
  static REKNIT_UPDATE_RULE void step(Cell& x, const RuleConstants& c, const RuleRange& r) {
    x.state[0] += c.rest1 * (x.grad - x.state[0]);
    x.state[1] += c.rest2 * (x.grad * x.grad - x.state[1]);
    x.grad = r.rate * x.state[0] / (sqrtf(x.state[1]) * c.v_scale + c.eps) + r.l2 * x.master;
  }
};

/// The state is the sum of squares.
struct AdagradRule {
  static constexpr int kStates = 1;
  static constexpr bool kDirection = false;
  static REKNIT_UPDATE_RULE void step(Cell& x, const RuleConstants& c, const RuleRange& r) {
    const float g = x.grad + r.l2 * x.master;
    x.state[0] += g * g;
    x.master -= r.rate * g / (sqrtf(x.state[0]) + c.eps);
  }
};

/// The sign of one mean (beta1) is the step, the other mean (beta2) is kept.
struct LionRule {
  static constexpr int kStates = 1;
  static constexpr bool kDirection = false;
  static REKNIT_UPDATE_RULE void step(Cell& x, const RuleConstants& c, const RuleRange& r) {
    const float mean = x.state[0] + c.rest1 * (x.grad - x.state[0]);
    const float sign = mean > 0.0f ? 1.0f : mean < 0.0f ? -1.0f : 0.0f;
    x.master = x.master * r.keep - r.rate * sign;
    x.state[0] += c.rest2 * (x.grad - x.state[0]);
  }
};

struct SgdRule {
  static constexpr int kStates = 0;
  static constexpr bool kDirection = false;
  static REKNIT_UPDATE_RULE void step(Cell& x, const RuleConstants&, const RuleRange& r) {
    x.master -= r.rate * (x.grad + r.l2 * x.master);
  }
};

/// state = beta1 * state + rest1 * gradient; rest1 is one minus the dampening.
struct SgdMomentumRule {
  static constexpr int kStates = 1;
  static constexpr bool kDirection = false;
  static REKNIT_UPDATE_RULE void step(Cell& x, const RuleConstants& c, const RuleRange& r) {
    const float g = x.grad + r.l2 * x.master;
    x.state[0] = c.beta1 * x.state[0] + c.rest1 * g;
    x.master -= r.rate * (c.grad_part * g + c.state_part * x.state[0]);
  }
};

/// The mean of the gradients, before a matrix is made orthogonal.
struct MuonDirectionRule {
  static constexpr int kStates = 1;
  static constexpr bool kDirection = true;
  static REKNIT_UPDATE_RULE void step(Cell& x, const RuleConstants& c, const RuleRange&) {
    x.state[0] += c.rest1 * (x.grad - x.state[0]);
    x.grad = c.grad_part * x.grad + c.state_part * x.state[0];
  }
};

/// The master goes along the direction that the gradient holds.
struct ApplyRule {
  static constexpr int kStates = 0;
  static constexpr bool kDirection = false;
  static REKNIT_UPDATE_RULE void step(Cell& x, const RuleConstants&, const RuleRange& r) {
    x.master = x.master * r.keep - r.rate * x.grad;
  }
};

/// Calls f(Rule{}) with the struct of `rule`.
template <class F>
void with_rule(UpdateRule rule, F&& f) {
  switch (rule) {
    case UpdateRule::kAdam:
      return f(AdamRule{});
    case UpdateRule::kAdagrad:
      return f(AdagradRule{});
    case UpdateRule::kLion:
      return f(LionRule{});
    case UpdateRule::kSgd:
      return f(SgdRule{});
    case UpdateRule::kSgdMomentum:
      return f(SgdMomentumRule{});
    case UpdateRule::kLambDirection:
      return f(LambDirectionRule{});
    case UpdateRule::kMuonDirection:
      return f(MuonDirectionRule{});
    case UpdateRule::kApply:
      return f(ApplyRule{});
  }
}

/// Flat arrays of equal length, of one shard. States that the rule has not are null.
struct RuleArrays {
  float* master = nullptr;
  float* state[2] = {nullptr, nullptr};
  float* grad = nullptr;
};

/// Updates elements [begin, begin + count) on CPU with the constants of `range` (its bounds
/// are not used); gradients are multiplied by `scale`.
void update_cpu(UpdateRule rule, const RuleArrays& arrays, int64_t begin, int64_t count,
                float scale, const RuleConstants& constants, const RuleRange& range);

}  // namespace reknit::kernels
