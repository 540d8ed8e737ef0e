// The tensor-typed door to the kernels: linear maps, norms, activations, embeddings.
//
// Legend: N tokens of all sequences, packed without padding; H hidden; V vocabulary.
// Every function runs on the calling thread's current stream (a rank's compute stream unless
// a StreamScope says otherwise), on the device of its inputs, in their dtype (fp32, fp16 or
// bf16) with fp32 sums; the result is new memory owned by the caller. Gradients of parameters
// are accumulated (+=) into `d_...`; an undefined `d_...` belongs to a frozen or absent
// parameter and is skipped.
// Reading a ParamView that does not hold its value throws StateError.
#pragma once

#include "reknit/base/param_view.h"

#include <ATen/core/Tensor.h>

namespace reknit::ops {

enum class Activation { kRelu, kGelu, kGeluTanh, kSilu };

/// x [N, in] weight^T [out, in] + bias [out] (may be absent) -> [N, out].
at::Tensor linear(const at::Tensor& x, const ParamView& weight, const ParamView& bias);

/// The same, and what a decoder does next, with no rounding between where the rows are few
/// and the device is a GPU: activation(linear), and residual [N, out] + linear.
at::Tensor linear_activation(const at::Tensor& x, const ParamView& weight, const ParamView& bias,
                             Activation kind);
at::Tensor linear_add(const at::Tensor& x, const ParamView& weight, const ParamView& bias,
                      const at::Tensor& residual);

/// dy [N, out] -> dx [N, in].
at::Tensor linear_backward(const at::Tensor& dy, const at::Tensor& x, const ParamView& weight,
                           const at::Tensor& d_weight, const at::Tensor& d_bias);

/// Elementwise. kGelu is x Phi(x) with erf, kGeluTanh its tanh approximation.
at::Tensor activation(const at::Tensor& x, Activation kind);
/// `x` is the input of the forward; -> dx.
at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& x, Activation kind);
/// The same for what a linear map with a bias gave: adds the gradient of that bias as well.
/// Consumes `dy`, which the result may share.
at::Tensor activation_backward(at::Tensor dy, const at::Tensor& x, Activation kind,
                               const at::Tensor& d_bias);

/// A normalised input and what its backward needs.
struct Normed {
  at::Tensor y;     ///< [N, H]
  at::Tensor mean;  ///< [N] fp32
  at::Tensor rstd;  ///< [N] fp32, 1 / sqrt(variance + eps)
};

/// (x - mean) * rstd * weight + bias over the last dimension.
Normed layer_norm(const at::Tensor& x, const ParamView& weight, const ParamView& bias, double eps);
/// -> dx [N, H], plus `d_residual` [N, H] where it is defined: the gradient that reaches x past
/// the norm. `x` is the input of the forward.
at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const Normed& saved,
                               const ParamView& weight, const at::Tensor& d_weight,
                               const at::Tensor& d_bias, const at::Tensor& d_residual = {});

/// ids [N] int64, table [V, H] -> base [N, H] (may be undefined) + rows ids + shift of the
/// table [N, H]. An id without a row throws on CPU and gives NaN on CUDA.
at::Tensor embedding(const at::Tensor& ids, const ParamView& table, int64_t shift = 0,
                     const at::Tensor& base = {});
/// d_table[ids[i]] += dy[i], in a fixed order (deterministic), but for the ids that are
/// `constant_row`, whose lookups are no function of the table. Undefined d_table: nothing.
void embedding_backward(const at::Tensor& dy, const at::Tensor& ids, const at::Tensor& d_table,
                        int64_t constant_row = -1);

}  // namespace reknit::ops
