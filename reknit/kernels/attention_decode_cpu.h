// Decode attention on CPU.
#pragma once

#include "reknit/kernels/attention.h"

namespace reknit::ops::cpu {

/// The new tokens: views of one row of qkv each, q [B, A, D], k and v [B, K, D], the
/// last dimension contiguous.
struct NewTokens {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
};

/// ops::attention_decode on CPU tensors, into out [B, A D].
void attention_decode(const NewTokens& in, const KvLayer& cache, const at::Tensor& slots,
                      const at::Tensor& lengths, double scale, const at::Tensor& slopes,
                      const at::Tensor& out);

}  // namespace reknit::ops::cpu
