// The first group: token and position embeddings, project_in, embedding norm.
#pragma once

#include "reknit/kernels/ops.h"
#include "reknit/models/spec.h"
#include "reknit/store/param_ref.h"

namespace reknit {

/// What the embeddings leave for their backward.
struct EmbedSaved {
  at::Tensor tokens;        ///< [N] int64
  at::Tensor position_ids;  ///< [N] int64, rows of the position table
  at::Tensor looked_up;     ///< [N, embed_dim], with project_in
  at::Tensor norm_input;    ///< [N, H], with an embedding norm
  ops::Normed normed;
};

/// tokens, positions [N] int64 (places in their sequences) -> [N, H].
at::Tensor embed_forward(const ModelSpec& spec, const Full& params, const at::Tensor& tokens,
                         const at::Tensor& positions, EmbedSaved* saved);

/// d_x [N, H]; adds into the gradients of group 0. Consumes `saved`.
void embed_backward(const ModelSpec& spec, const Full& params, Gradients& gradients,
                    const at::Tensor& d_x, EmbedSaved saved);

}  // namespace reknit
