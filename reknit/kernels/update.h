// Flat-buffer kernels of the optimizer and of gradient reduction.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reknit::ops {

/// dst [n] fp32 += src [n] (any float dtype).
void accumulate(const at::Tensor& dst, const at::Tensor& src);

/// Sum of squares of a flat fp32 tensor, as a [1] fp64 tensor on its device; NaN or
/// inf in the input stays visible in the sum.
at::Tensor sum_squares(const at::Tensor& flat);

/// AdamW (Loshchilov & Hutter, "Decoupled weight decay regularization", 2019) with
/// bias correction; `decoupled` false adds the decay to the gradient (Adam with L2).
struct AdamStep {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool decoupled = true;
  bool bias_correction = true;
  int64_t step = 1;  ///< 1 for the first update
};

/// A run of elements with its own decay and learning-rate factor.
struct UpdateRange {
  int64_t begin = 0;
  int64_t end = 0;
  double weight_decay = 0.0;
  double lr_factor = 1.0;
};

/// Flat fp32 tensors of equal length, updated in place.
struct AdamState {
  at::Tensor master;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

/// One update of the ranges: grad (fp32, multiplied by `grad_scale` [1] fp32 on the
/// device: unscale times clip) moves master; `weight` (model dtype, same length; may be
/// undefined, may be master itself) gets the rounded result. Elements outside the
/// ranges are untouched. No host synchronisation.
void adam_update(const AdamState& state, const at::Tensor& grad, const at::Tensor& grad_scale,
                 const at::Tensor& weight, const AdamStep& step,
                 const std::vector<UpdateRange>& ranges);

}  // namespace reknit::ops
