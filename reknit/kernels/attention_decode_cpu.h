// Decode attention on CPU.
#pragma once

#include "reknit/kernels/heads.h"

namespace reknit::ops::cpu {

/// ops::attention_decode on CPU tensors, into out [B, A D].
void attention_decode(const Heads& in, const KvLayer& cache, const at::Tensor& slots,
                      const at::Tensor& lengths, double scale, const at::Tensor& slopes,
                      const at::Tensor& out);

}  // namespace reknit::ops::cpu
