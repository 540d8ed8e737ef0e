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
  void* scratch = nullptr;                   ///< sampling_scratch(args) bytes, aligned to 16
};

int64_t sampling_scratch(const Sampling& args);

/// The same bits for the same row, key and position, whatever the other rows.
void sample(const Sampling& args, cudaStream_t stream);

/// What a decode step does with the tokens it drew: row b's token and log-probability go
/// to place [positions[b], b] of the answers (none past `most`), the token becomes the next
/// input, and length and position grow by one.
struct KeepDrawn {
  int64_t rows = 0;
  int64_t most = 0;
  const int64_t* drawn = nullptr;     ///< [rows]
  const float* drawn_logp = nullptr;  ///< [rows]
  int64_t* inputs = nullptr;          ///< [rows]
  int64_t* lengths = nullptr;         ///< [rows]
  int64_t* positions = nullptr;       ///< [rows]
  int64_t* tokens = nullptr;          ///< [most, rows]
  float* logp = nullptr;              ///< [most, rows]
};

void keep_drawn(const KeepDrawn& args, cudaStream_t stream);

}  // namespace reknit::kernels
