#include "reknit/kernels/update.h"

#include "reknit/kernels/cpu_loops.h"
#include "reknit/kernels/cuda_path.h"
#include "reknit/kernels/update_rules.h"

#include <algorithm>
#include <cmath>

namespace reknit::ops {
namespace {

/// Elements of one range that are updated together, small enough for the L1 cache.
constexpr int64_t kBlock = 1024;

using kernels::RuleConstants;
using kernels::RuleRange;
using kernels::UpdateRule;

void check_shard(const FlatShard& shard, size_t states, const std::vector<UpdateRange>& ranges,
                 int64_t scales) {
  const int64_t n = shard.master.numel();
  REKNIT_INVARIANT(shard.grad.numel() == n, "an update of ", n, " elements with a gradient of ",
                   shard.grad.numel());
  REKNIT_INVARIANT(!shard.weight.defined() || shard.weight.numel() == n, "an update of ", n,
                   " elements into a weight of ", shard.weight.numel());
  for (size_t i = 0; i < states; ++i) {
    REKNIT_INVARIANT(shard.states[i].defined() && shard.states[i].numel() == n, "an update of ", n,
                     " elements with a state of ",
                     shard.states[i].defined() ? shard.states[i].numel() : 0);
  }
  for (const UpdateRange& range : ranges) {
    REKNIT_INVARIANT(range.begin >= 0 && range.begin <= range.end && range.end <= n, "the range [",
                     range.begin, ", ", range.end, ") of ", n, " elements");
    REKNIT_INVARIANT(range.scale >= 0 && range.scale < scales, "scale ", range.scale, " of ",
                     scales);
  }
}

/// A rule with everything that is folded.
struct Folded {
  UpdateRule rule;
  RuleConstants constants;
  std::vector<RuleRange> ranges;
};

/// Folds the ranges with `fold` (an UpdateRange to l2, keep and rate, in doubles); ranges
/// that meet and have the same constants become one.
struct RangeFactors {
  double l2 = 0.0;
  double keep = 1.0;
  double rate = 0.0;
};
template <class F>
std::vector<RuleRange> fold(const std::vector<UpdateRange>& ranges, F factors) {
  std::vector<RuleRange> folded;
  for (const UpdateRange& range : ranges) {
    const RangeFactors f = factors(range);
    const RuleRange next{range.begin,
                         range.end,
                         static_cast<float>(f.l2),
                         static_cast<float>(f.keep),
                         static_cast<float>(f.rate),
                         range.scale};
    const bool continues = !folded.empty() && folded.back().end == next.begin &&
                           folded.back().l2 == next.l2 && folded.back().keep == next.keep &&
                           folded.back().rate == next.rate && folded.back().scale == next.scale;
    if (continues) {
      folded.back().end = next.end;
    } else {
      folded.push_back(next);
    }
  }
  return folded;
}

/// What is missing of a mean that started from zero.
double correction(const AdamStep& step, double beta) {
  return step.bias_correction ? 1.0 - std::pow(beta, static_cast<double>(step.step)) : 1.0;
}

RuleConstants adam_constants(const AdamStep& step) {
  RuleConstants c;
  c.rest1 = static_cast<float>(1.0 - step.beta1);
  c.rest2 = static_cast<float>(1.0 - step.beta2);
  c.v_scale = static_cast<float>(1.0 / std::sqrt(correction(step, step.beta2)));
  c.eps = static_cast<float>(step.eps);
  return c;
}

kernels::RuleArrays arrays_of(const FlatShard& shard) {
  const auto pointer = [](const at::Tensor& x) {
    return x.defined() ? x.mutable_data_ptr<float>() : nullptr;
  };
  return {pointer(shard.master),
          {pointer(shard.states[0]), pointer(shard.states[1])},
          pointer(shard.grad)};
}

void update_on_cpu(const FlatShard& shard, const at::Tensor& scales, const Folded& folded) {
  const kernels::RuleArrays arrays = arrays_of(shard);
  const auto* scale = scales.const_data_ptr<float>();
  const at::Tensor& weight = shard.weight;
  cpu::with_type(weight.defined() ? weight.scalar_type() : at::kFloat, [&](auto zero) {
    using T = decltype(zero);
    T* rounded = weight.defined() ? weight.mutable_data_ptr<T>() : nullptr;
    for (const RuleRange& range : folded.ranges) {
      for (int64_t i = range.begin; i < range.end; i += kBlock) {
        const int64_t count = std::min(kBlock, range.end - i);
        kernels::update_cpu(folded.rule, arrays, i, count, scale[range.scale], folded.constants,
                            range);
        if (rounded != nullptr) {
          std::copy(arrays.master + i, arrays.master + i + count, rounded + i);
        }
      }
    }
  });
}

/// `states`: how many the rule has; `writes` false: it leaves master and weight alone.
void update(const FlatShard& shard, const at::Tensor& scales, const Folded& folded,
            const std::vector<UpdateRange>& ranges, size_t states, bool writes = true) {
  check_shard(shard, states, ranges, scales.numel());
  FlatShard used = shard;
  const bool is_master =
      used.weight.defined() && used.weight.const_data_ptr() == used.master.const_data_ptr();
  if (is_master || !writes) {
    used.weight = at::Tensor();
  }
  for (size_t i = states; i < used.states.size(); ++i) {
    used.states[i] = at::Tensor();
  }
  if (shard.master.is_cuda()) {
    cuda::flat_update(folded.rule, used, arrays_of(used), scales, folded.constants, folded.ranges);
  } else {
    update_on_cpu(used, scales, folded);
  }
}

REKNIT_CPU_CLONES
double sum_squares_cpu(const float* x, int64_t count) {
  double lanes[cpu::kLanes] = {};
  int64_t i = 0;
  for (; i + cpu::kLanes <= count; i += cpu::kLanes) {
    for (int64_t l = 0; l < cpu::kLanes; ++l) {
      lanes[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
    }
  }
  double sum = 0;
  for (const double lane : lanes) {
    sum += lane;
  }
  for (; i < count; ++i) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return sum;
}

}  // namespace

void accumulate(const at::Tensor& dst, const at::Tensor& src) {
  REKNIT_INVARIANT(dst.numel() == src.numel(), "accumulating ", src.numel(), " elements into ",
                   dst.numel());
  if (dst.is_cuda()) {
    cuda::accumulate(dst, src);
  } else {
    dst.add_(src);
  }
}

at::Tensor sum_squares(const at::Tensor& flat) {
  return sum_squares(flat, {{0, flat.numel()}});
}

at::Tensor sum_squares(const at::Tensor& flat, const std::vector<UpdateRange>& ranges) {
  if (flat.is_cuda()) {
    return cuda::sum_squares(flat, ranges);
  }
  at::Tensor sums = at::empty({static_cast<int64_t>(ranges.size())}, at::kDouble);
  for (size_t i = 0; i < ranges.size(); ++i) {
    sums.mutable_data_ptr<double>()[i] = sum_squares_cpu(
        flat.const_data_ptr<float>() + ranges[i].begin, ranges[i].end - ranges[i].begin);
  }
  return sums;
}

void adam_update(const FlatShard& shard, const at::Tensor& scales, const AdamStep& step,
                 const std::vector<UpdateRange>& ranges) {
  const auto factors = [&](const UpdateRange& r) -> RangeFactors {
    const double rate = r.lr / correction(step, step.beta1);
    return step.decoupled ? RangeFactors{0.0, 1.0 - r.lr * r.weight_decay, rate}
                          : RangeFactors{r.weight_decay, 1.0, rate};
  };
  update(shard, scales, {UpdateRule::kAdam, adam_constants(step), fold(ranges, factors)}, ranges,
         2);
}

void adagrad_update(const FlatShard& shard, const at::Tensor& scales, const AdagradStep& step,
                    const std::vector<UpdateRange>& ranges) {
  RuleConstants c;
  c.eps = static_cast<float>(step.eps);
  const double slowed = 1.0 + static_cast<double>(step.step - 1) * step.lr_decay;
  const auto factors = [&](const UpdateRange& r) -> RangeFactors {
    return {r.weight_decay, 1.0, r.lr / slowed};
  };
  update(shard, scales, {UpdateRule::kAdagrad, c, fold(ranges, factors)}, ranges, 1);
}

void lion_update(const FlatShard& shard, const at::Tensor& scales, const LionStep& step,
                 const std::vector<UpdateRange>& ranges) {
  RuleConstants c;
  c.rest1 = static_cast<float>(1.0 - step.beta1);
  c.rest2 = static_cast<float>(1.0 - step.beta2);
  const auto factors = [](const UpdateRange& r) -> RangeFactors {
    return {0.0, 1.0 - r.lr * r.weight_decay, r.lr};
  };
  update(shard, scales, {UpdateRule::kLion, c, fold(ranges, factors)}, ranges, 1);
}

void sgd_update(const FlatShard& shard, const at::Tensor& scales, const SgdStep& step,
                const std::vector<UpdateRange>& ranges) {
  const auto factors = [](const UpdateRange& r) -> RangeFactors {
    return {r.weight_decay, 1.0, r.lr};
  };
  if (step.momentum == 0) {
    update(shard, scales, {UpdateRule::kSgd, {}, fold(ranges, factors)}, ranges, 0);
    return;
  }
  RuleConstants c;
  c.beta1 = static_cast<float>(step.momentum);
  c.rest1 = static_cast<float>(step.step == 1 ? 1.0 : 1.0 - step.dampening);
  c.grad_part = step.nesterov ? 1.0f : 0.0f;
  c.state_part = step.nesterov ? static_cast<float>(step.momentum) : 1.0f;
  update(shard, scales, {UpdateRule::kSgdMomentum, c, fold(ranges, factors)}, ranges, 1);
}

void lamb_direction(const FlatShard& shard, const at::Tensor& scales, const AdamStep& step,
                    const std::vector<UpdateRange>& ranges) {
  const auto factors = [&](const UpdateRange& r) -> RangeFactors {
    return {r.weight_decay, 1.0, 1.0 / correction(step, step.beta1)};
  };
  update(shard, scales, {UpdateRule::kLambDirection, adam_constants(step), fold(ranges, factors)},
         ranges, 2, false);
}

void muon_direction(const FlatShard& shard, const at::Tensor& scales, const MuonStep& step,
                    const std::vector<UpdateRange>& ranges) {
  RuleConstants c;
  c.rest1 = static_cast<float>(1.0 - step.momentum);
  c.grad_part = step.nesterov ? static_cast<float>(1.0 - step.momentum) : 0.0f;
  c.state_part = step.nesterov ? static_cast<float>(step.momentum) : 1.0f;
  const auto factors = [](const UpdateRange&) -> RangeFactors { return {}; };
  update(shard, scales, {UpdateRule::kMuonDirection, c, fold(ranges, factors)}, ranges, 1, false);
}

void apply_direction(const FlatShard& shard, const at::Tensor& scales,
                     const std::vector<UpdateRange>& ranges) {
  const auto factors = [](const UpdateRange& r) -> RangeFactors {
    return {0.0, 1.0 - r.lr * r.weight_decay, r.lr};
  };
  update(shard, scales, {UpdateRule::kApply, {}, fold(ranges, factors)}, ranges, 0);
}

}  // namespace reknit::ops
