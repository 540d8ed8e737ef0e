// Drawing tokens from rows of logits on CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reknit::kernels {

struct Sampling {
  int64_t rows = 0;
  int64_t columns = 0;                       ///< that count; at most 2^31
  int64_t stride = 0;                        ///< between rows of the logits
  const float* logits = nullptr;             ///< [rows, stride]
  float temperature = 1;                     ///< 0: greedy
  int64_t top_k = 0;                         ///< 0: off
  double top_p = 1;                          ///< 1: off
  const int64_t* keys = nullptr;             ///< [rows], of the random numbers
  const int64_t* positions = nullptr;        ///< [rows]
  const int64_t* forbidden_until = nullptr;  ///< [rows]
  int64_t eos = -1;                          ///< column that may be forbidden; -1: none
  int64_t* tokens = nullptr;                 ///< [rows]
  float* logp = nullptr;                     ///< [rows]
};

/// The same bits for the same row, key and position, whatever the other rows.
void sample(const Sampling& args, cudaStream_t stream);

}  // namespace reknit::kernels
