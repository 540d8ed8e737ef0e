// The last group without its output table: final norm and project_out.
#pragma once

#include "reknit/kernels/ops.h"
#include "reknit/models/spec.h"
#include "reknit/store/param_ref.h"

namespace reknit {

/// What the head leaves for its backward.
struct HeadSaved {
  at::Tensor norm_input;  ///< [N, H], with a final norm
  ops::Normed normed;
  at::Tensor project_input;  ///< [N, H], with project_out
};

/// x [N, H] -> [N, embed_dim], what the output table or the value head reads.
at::Tensor head_forward(const ModelSpec& spec, const Full& params, const at::Tensor& x,
                        HeadSaved* saved);

/// d_hidden [N, embed_dim] -> d_x [N, H]; adds into the gradients of the last group.
/// Consumes `saved`.
at::Tensor head_backward(const ModelSpec& spec, const Full& params, Gradients& gradients,
                         const at::Tensor& d_hidden, HeadSaved saved);

}  // namespace reknit
