// One decoder block, forward and backward, for every architecture.
//
// Two sublayers, attention and MLP; each is a branch with a norm and a residual:
//   norm before   y = x + branch(norm(x))        the residual may also be norm(x) (BLOOM)
//   norm after    y = norm(x + branch(x))        (OPT-350m)
#pragma once

#include "reknit/kernels/attention.h"
#include "reknit/kernels/ops.h"
#include "reknit/models/seams.h"
#include "reknit/models/spec.h"
#include "reknit/store/param_ref.h"

#include <functional>

namespace reknit {

/// What a sublayer's norm and residual leave for their backward.
struct ResidualSaved {
  at::Tensor branch_input;  ///< [N, H] what the branch read; undefined: norm_input normed again
  at::Tensor norm_input;    ///< [N, H]
  ops::Normed normed;       ///< its y is the branch's input or the sublayer's output
};

/// Whether a block's backward computes the results of its norms again.
inline bool norms_again(const ModelSpec& spec) {
  return spec.norm_before && !spec.residual_after_norm;
}

/// What a block's forward leaves for its backward. Tensors are shared where one is
/// both an output and an input.
struct BlockSaved {
  ResidualSaved attn;
  at::Tensor qkv;
  ops::AttentionOut attention;
  ResidualSaved mlp;
  at::Tensor fc1_out;    ///< [N, F]; with ReLU undefined: the result tells as much
  at::Tensor activated;  ///< [N, F]; with the others undefined: computed again
};

/// qkv [N, (A + 2K) D] -> attention: packed, packed into a cache, or one token over a
/// cache. The `lse` of the last is undefined.
using Attend = std::function<ops::AttentionOut(const at::Tensor& qkv)>;

/// What a block drops in training; off by default. Attention's also goes into Attend.
struct BlockDropout {
  ops::Dropout attention;  ///< probabilities
  ops::Dropout after_attention;
  ops::Dropout after_mlp;

  bool on_branches() const { return after_attention.on() || after_mlp.on(); }
};

/// x [N, H] -> [N, H]. `params` is the group of the block. Fills `saved` if given.
at::Tensor block_forward(const ModelSpec& spec, const Full& params, const at::Tensor& x,
                         const Attend& attend, const BlockReduce& reduce, BlockSaved* saved,
                         const BlockDropout& dropout = {});

/// What block_forward would have saved, bit for bit, without what only its result needs.
BlockSaved block_recompute(const ModelSpec& spec, const Full& params, const at::Tensor& x,
                           const Attend& attend, const BlockReduce& reduce,
                           const BlockDropout& dropout = {});

/// d_y [N, H] -> d_x [N, H]; adds into the gradients of the group. Consumes `saved`:
/// each tensor is given up once it has been read. `slopes` as in ops::attention.
at::Tensor block_backward(const ModelSpec& spec, const Full& params, Gradients& gradients,
                          const at::Tensor& d_y, BlockSaved saved, const ops::Packing& packing,
                          const at::Tensor& slopes, const BlockDropout& dropout = {});

/// What attention scores are multiplied by.
double attention_scale(const ModelSpec& spec);

}  // namespace reknit
