// Attention on CUDA for what the fused kernels do not take (ALiBi, fp32, odd head
// sizes, dropout): sequences padded to the longest, batched products, probabilities in memory.
#pragma once

#include "reknit/kernels/heads.h"

namespace reknit::ops {

/// As ops::attention, on query, key and value that are split already.
AttentionOut dense_attention(const Heads& in, const Packing& packing, double scale,
                             const at::Tensor& slopes, const Dropout& dropout);
/// Writes the gradients to the views `grads`.
void dense_attention_backward(const at::Tensor& d_out, const Heads& in, const AttentionOut& saved,
                              const Packing& packing, double scale, const at::Tensor& slopes,
                              const Dropout& dropout, const Heads& grads);

}  // namespace reknit::ops
