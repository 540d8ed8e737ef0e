// The CUDA side of the tensor-typed operations. Contracts are those of the functions of
// the same name in ops.h, attention.h, lm_head.h and update.h; all tensors on CUDA.
// Without CUDA no_cuda_kernels.cpp stands in.
#pragma once

#include "reknit/kernels/dropout_rule.h"
#include "reknit/kernels/heads.h"
#include "reknit/kernels/lm_head.h"
#include "reknit/kernels/ops.h"
#include "reknit/kernels/update.h"
#include "reknit/kernels/update_rules.h"

#include <optional>

namespace reknit::ops::cuda {

/// d_bias [width] += the rows of dy [N, width].
void add_column_sums(const at::Tensor& d_bias, const at::Tensor& dy);

using Param = std::optional<at::Tensor>;

/// dy and x contiguous; dy becomes dx.
void activation_backward_(const at::Tensor& dy, const at::Tensor& x, Activation kind,
                          const at::Tensor& d_bias);
/// y [N, out] += bias + residual, rounded once; y contiguous.
void add_residual(const at::Tensor& y, const Param& bias, const at::Tensor& residual);

/// What goes on around a product of few rows.
struct SkinnyOptions {
  Param bias;
  std::optional<Activation> activation;          ///< after the bias
  at::Tensor residual;                           ///< [N, out] added last; may be undefined
  std::optional<at::ScalarType> out_dtype = {};  ///< fp32; default: that of x
};
/// x [N, in] weight^T [out, in] and so on -> [N, out]; nothing where N is not small or the
/// kernel does not take the shapes.
std::optional<at::Tensor> skinny_linear(const at::Tensor& x, const at::Tensor& weight,
                                        const SkinnyOptions& options);

Normed layer_norm(const at::Tensor& x, const Param& weight, const Param& bias, double eps);
at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const Normed& saved,
                               const Param& weight, const at::Tensor& d_weight,
                               const at::Tensor& d_bias, const at::Tensor& d_residual);
at::Tensor embedding(const at::Tensor& ids, const at::Tensor& table, int64_t shift,
                     const at::Tensor& base);
void embedding_backward(const at::Tensor& dy, const at::Tensor& ids, const at::Tensor& d_table,
                        int64_t constant_row);

/// Whether a fused attention takes these heads: 16 bits, no slopes, sizes that are
/// multiples of 8 and at most 256; or what cudnn_attention.h says.
bool fused_attention_takes(const Heads& in, const Packing& packing, const at::Tensor& slopes);
AttentionOut fused_attention(const Heads& in, const Packing& packing, double scale,
                             const at::Tensor& slopes);
/// Writes the gradients to the views `grads`.
void fused_attention_backward(const at::Tensor& d_out, const Heads& in, const AttentionOut& saved,
                              const Packing& packing, double scale, const at::Tensor& slopes,
                              const Heads& grads);

void cache_prompts(const Heads& in, const Packing& packing, const at::Tensor& slots,
                   const KvLayer& cache);
at::Tensor attention_decode(const Heads& in, const KvLayer& cache, const at::Tensor& slots,
                            const at::Tensor& lengths, double scale, const at::Tensor& slopes);

/// One chunk: logits [n, V] fp32, targets [n] -> out [n], in place.
void logprobs(const at::Tensor& logits, const at::Tensor& targets, const TokenLogprobs& out);
/// One chunk: the gradient of the logits, in `dtype` (fp32: in place).
at::Tensor logprobs_backward(const at::Tensor& logits, const at::Tensor& targets,
                             const at::Tensor& lse, const at::Tensor& d_logp, at::ScalarType dtype);
Sampled sample(const at::Tensor& logits, const SampleSettings& settings, const at::Tensor& keys,
               const at::Tensor& positions, const at::Tensor& forbidden_until, int64_t eos);
void keep_drawn(const Sampled& drawn, const DrawState& state);

/// On the stream of `like`.
void drop_rows(at::ScalarType dtype, const kernels::DropoutRule& rule,
               const kernels::DropoutRows& rows, const at::Tensor& like);

void accumulate(const at::Tensor& dst, const at::Tensor& src);
at::Tensor sum_squares(const at::Tensor& flat, const std::vector<UpdateRange>& ranges);
/// The shard's `weight` is undefined where there is none to be written; `arrays` are its
/// pointers.
void flat_update(kernels::UpdateRule rule, const FlatShard& shard,
                 const kernels::RuleArrays& arrays, const at::Tensor& scales,
                 const kernels::RuleConstants& constants,
                 const std::vector<kernels::RuleRange>& ranges);

}  // namespace reknit::ops::cuda
