// Causal attention of 16-bit heads on CUDA, by cuDNN. Built only with CUDA.
//
// q, k, v and their gradients are read and written where they lie in the rows of qkv. A plan is
// built once for each shape and thread, which takes up to a second. Unequal sequences share a
// plan where their longest are near; without ALiBi flash attention serves them as well.
#pragma once

#include "reknit/kernels/heads.h"

namespace reknit::ops::cuda {

/// Whether cuDNN takes them: 16 bits, sums in any order, heads of a size that is a multiple of 8
/// and at most 128, a longest sequence of at least 256 and none that is empty; without slopes,
/// all equally long. Slopes are those of alibi_slopes(): cuDNN makes them itself.
bool cudnn_attention_takes(const Heads& in, const Packing& packing, const at::Tensor& slopes);

/// The lse is [B, A, L], L the length of the plan.
AttentionOut cudnn_attention(const Heads& in, const Packing& packing, double scale, bool alibi);
/// Writes the gradients to the views `grads`, which lie in their rows as `in` does.
void cudnn_attention_backward(const at::Tensor& d_out, const Heads& in, const AttentionOut& saved,
                              const Packing& packing, double scale, bool alibi, const Heads& grads);

}  // namespace reknit::ops::cuda
