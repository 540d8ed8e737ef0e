// Flat-buffer kernels of the optimizers and of gradient reduction.
//
// Every update below works on one shard in one pass and without host synchronisation: a
// range's gradient (multiplied by its scale: unscale times clip) moves the master, and the
// weight gets the rounded result. Elements outside of the ranges are untouched.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace reknit::ops {

/// dst [n] fp32 += src [n] (any float dtype).
void accumulate(const at::Tensor& dst, const at::Tensor& src);

/// A run of elements with its own decay, rate and scale.
struct UpdateRange {
  int64_t begin = 0;
  int64_t end = 0;
  double weight_decay = 0.0;
  double lr = 1e-3;
  int64_t scale = 0;  ///< which of the scales multiplies the gradient
};

/// Sum of squares of a flat fp32 tensor, as a [1] fp64 tensor on its device; NaN or
/// inf in the input stays visible in the sum.
at::Tensor sum_squares(const at::Tensor& flat);
/// The same of every range: [ranges] fp64.
at::Tensor sum_squares(const at::Tensor& flat, const std::vector<UpdateRange>& ranges);

/// Flat tensors of equal length n, all fp32 but `weight`.
struct FlatShard {
  at::Tensor master;
  at::Tensor grad;                   ///< its elements are read; some functions write them
  at::Tensor weight;                 ///< any float dtype, may be undefined or the master itself
  std::array<at::Tensor, 2> states;  ///< as many as the rule has
};

/// Adam (Kingma & Ba, 2015) and AdamW (Loshchilov & Hutter, "Decoupled weight decay
/// regularization", 2019): `decoupled` false adds the decay to the gradient. The states are
/// the means of gradients and of their squares.
struct AdamStep {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool decoupled = true;
  bool bias_correction = true;
  int64_t step = 1;  ///< 1 for the first update
};
/// `scales` [k] fp32 on the device of the shard, here and below.
void adam_update(const FlatShard& shard, const at::Tensor& scales, const AdamStep& step,
                 const std::vector<UpdateRange>& ranges);

/// Adagrad (Duchi et al., 2011); the state is the sum of squares. The decay joins the
/// gradient.
struct AdagradStep {
  double eps = 1e-10;
  double lr_decay = 0.0;  ///< the rate is divided by 1 + (step - 1) * lr_decay
  int64_t step = 1;
};
void adagrad_update(const FlatShard& shard, const at::Tensor& scales, const AdagradStep& step,
                    const std::vector<UpdateRange>& ranges);

/// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023); the state is
/// the mean of gradients. The decay is decoupled.
struct LionStep {
  double beta1 = 0.9;
  double beta2 = 0.99;
};
void lion_update(const FlatShard& shard, const at::Tensor& scales, const LionStep& step,
                 const std::vector<UpdateRange>& ranges);

/// Stochastic gradient descent; the decay joins the gradient. With a momentum the state is
/// momentum * state + (1 - dampening) * gradient, at the first step the gradient itself;
/// nesterov steps along gradient + momentum * state. Without one there is no state.
struct SgdStep {
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  int64_t step = 1;
};
void sgd_update(const FlatShard& shard, const at::Tensor& scales, const SgdStep& step,
                const std::vector<UpdateRange>& ranges);

/// The first half of LAMB (You et al., 2020): Adam's states move, and the direction, its
/// step of rate 1 plus weight_decay times the master, replaces the gradient. The master
/// stays.
void lamb_direction(const FlatShard& shard, const at::Tensor& scales, const AdamStep& step,
                    const std::vector<UpdateRange>& ranges);

/// The first half of Muon: the state, a mean of gradients that moves by 1 - momentum, or
/// with `nesterov` the same mean one gradient further, replaces the gradient.
struct MuonStep {
  double momentum = 0.95;
  bool nesterov = true;
};
void muon_direction(const FlatShard& shard, const at::Tensor& scales, const MuonStep& step,
                    const std::vector<UpdateRange>& ranges);

/// The second half: master = master * (1 - lr * weight_decay) - lr * scale * gradient.
void apply_direction(const FlatShard& shard, const at::Tensor& scales,
                     const std::vector<UpdateRange>& ranges);

}  // namespace reknit::ops
