#include "reknit/kernels/update.h"

#include "reknit/kernels/adam_step.h"
#include "reknit/kernels/cpu_loops.h"
#include "reknit/kernels/cuda_path.h"

#include <algorithm>
#include <cmath>

namespace reknit::ops {
namespace {

/// Elements of one range that are updated together, small enough for the L1 cache.
constexpr int64_t kBlock = 1024;

void check_ranges(const AdamState& state, const at::Tensor& grad, const at::Tensor& weight,
                  const std::vector<UpdateRange>& ranges) {
  const int64_t n = state.master.numel();
  REKNIT_INVARIANT(state.exp_avg.numel() == n && state.exp_avg_sq.numel() == n && grad.numel() == n,
                   "an update of ", n, " elements with moments of ", state.exp_avg.numel(), " and ",
                   state.exp_avg_sq.numel(), " and a gradient of ", grad.numel());
  REKNIT_INVARIANT(!weight.defined() || weight.numel() == n, "an update of ", n,
                   " elements into a weight of ", weight.numel());
  for (const UpdateRange& range : ranges) {
    REKNIT_INVARIANT(range.begin >= 0 && range.begin <= range.end && range.end <= n, "the range [",
                     range.begin, ", ", range.end, ") of ", n, " elements");
  }
}

kernels::AdamConstants fold(const AdamStep& step) {
  const double correction =
      step.bias_correction ? 1.0 - std::pow(step.beta2, static_cast<double>(step.step)) : 1.0;
  return {static_cast<float>(step.beta1), static_cast<float>(step.beta2),
          static_cast<float>(1.0 / std::sqrt(correction)), static_cast<float>(step.eps)};
}

kernels::AdamRange fold(const AdamStep& step, const UpdateRange& range) {
  const double lr = step.lr * range.lr_factor;
  const double correction =
      step.bias_correction ? 1.0 - std::pow(step.beta1, static_cast<double>(step.step)) : 1.0;
  return {range.begin, range.end, static_cast<float>(step.decoupled ? 0.0 : range.weight_decay),
          static_cast<float>(step.decoupled ? 1.0 - lr * range.weight_decay : 1.0),
          static_cast<float>(lr / correction)};
}

/// Ranges that meet and have the same constants become one.
std::vector<kernels::AdamRange> fold(const AdamStep& step, const std::vector<UpdateRange>& ranges) {
  std::vector<kernels::AdamRange> folded;
  for (const UpdateRange& range : ranges) {
    const kernels::AdamRange next = fold(step, range);
    const bool continues = !folded.empty() && folded.back().end == next.begin &&
                           folded.back().l2 == next.l2 && folded.back().keep == next.keep &&
                           folded.back().rate == next.rate;
    if (continues) {
      folded.back().end = next.end;
    } else {
      folded.push_back(next);
    }
  }
  return folded;
}

void adam_update_cpu(const AdamState& state, const at::Tensor& grad, float grad_scale,
                     const at::Tensor& weight, const kernels::AdamConstants& constants,
                     const std::vector<kernels::AdamRange>& ranges) {
  auto* master = state.master.mutable_data_ptr<float>();
  auto* m = state.exp_avg.mutable_data_ptr<float>();
  auto* v = state.exp_avg_sq.mutable_data_ptr<float>();
  const auto* g = grad.const_data_ptr<float>();
  cpu::with_type(weight.defined() ? weight.scalar_type() : at::kFloat, [&](auto zero) {
    using T = decltype(zero);
    T* rounded = weight.defined() ? weight.mutable_data_ptr<T>() : nullptr;
    for (const kernels::AdamRange& range : ranges) {
      for (int64_t i = range.begin; i < range.end; i += kBlock) {
        const int64_t count = std::min(kBlock, range.end - i);
        kernels::adam_step_cpu(master + i, m + i, v + i, g + i, count, grad_scale, constants,
                               range);
        if (rounded != nullptr) {
          std::copy(master + i, master + i + count, rounded + i);
        }
      }
    }
  });
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
  if (flat.is_cuda()) {
    return cuda::sum_squares(flat);
  }
  return at::full({1}, sum_squares_cpu(flat.const_data_ptr<float>(), flat.numel()), at::kDouble);
}

void adam_update(const AdamState& state, const at::Tensor& grad, const at::Tensor& grad_scale,
                 const at::Tensor& weight, const AdamStep& step,
                 const std::vector<UpdateRange>& ranges) {
  check_ranges(state, grad, weight, ranges);
  const bool is_master =
      weight.defined() && weight.const_data_ptr() == state.master.const_data_ptr();
  const at::Tensor rounded = is_master ? at::Tensor() : weight;
  const kernels::AdamConstants constants = fold(step);
  const std::vector<kernels::AdamRange> folded = fold(step, ranges);
  if (state.master.is_cuda()) {
    cuda::adam_update(state, grad, grad_scale, rounded, constants, folded);
  } else {
    adam_update_cpu(state, grad, *grad_scale.const_data_ptr<float>(), rounded, constants, folded);
  }
}

}  // namespace reknit::ops
