// Log-softmax over rows of logits on CUDA: gather, entropy, gradient.
#pragma once

#include "reknit/kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reknit::kernels {

struct Logprobs {
  int64_t rows = 0;
  int64_t columns = 0;
  const float* logits = nullptr;     ///< [rows, columns]
  const int64_t* targets = nullptr;  ///< [rows]; negative: no target
  float* logp = nullptr;             ///< [rows]; 0 without target
  float* lse = nullptr;              ///< [rows]
  float* entropy = nullptr;          ///< [rows] or null
};

void logprobs(const Logprobs& args, cudaStream_t stream);

struct LogprobsBackward {
  int64_t rows = 0;
  int64_t columns = 0;
  const float* logits = nullptr;     ///< [rows, columns]
  const int64_t* targets = nullptr;  ///< [rows]
  const float* lse = nullptr;        ///< [rows]
  const float* d_logp = nullptr;     ///< [rows]
  void* d_logits = nullptr;          ///< [rows, columns]; may be logits where fp32
};

/// Rows without target get exactly 0.
void logprobs_backward(Element element, const LogprobsBackward& args, cudaStream_t stream);

}  // namespace reknit::kernels
