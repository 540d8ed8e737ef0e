// Sampling on CPU.
#pragma once

#include "reknit/kernels/lm_head.h"

namespace reknit::ops::cpu {

/// ops::sample on CPU tensors.
Sampled sample(const at::Tensor& logits, const SampleSettings& settings, const at::Tensor& keys,
               const at::Tensor& positions, const at::Tensor& forbidden_until, int64_t eos);

}  // namespace reknit::ops::cpu
