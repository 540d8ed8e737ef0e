// Layer norm on CUDA. Raw pointers, queued on a stream, fp32 sums; all row-major.
#pragma once

#include "reknit/kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reknit::kernels {

/// Rows that cannot be held in a block's registers throw StateError: wider than 2048 packs of
/// 16 bytes, or than 2048 elements where the width is not whole packs.
struct LayerNorm {
  int64_t rows = 0;
  int64_t width = 0;
  float eps = 0;
  const void* x = nullptr;       ///< [rows, width]
  const void* weight = nullptr;  ///< [width] or null
  const void* bias = nullptr;    ///< [width] or null
  void* y = nullptr;             ///< [rows, width]
  float* mean = nullptr;         ///< [rows]
  float* rstd = nullptr;         ///< [rows]
};

void layer_norm(Element element, const LayerNorm& args, cudaStream_t stream);

struct LayerNormBackward {
  int64_t rows = 0;
  int64_t width = 0;
  const void* dy = nullptr;          ///< [rows, width]
  const void* x = nullptr;           ///< [rows, width]
  const void* weight = nullptr;      ///< [width] or null
  const float* mean = nullptr;       ///< [rows]
  const float* rstd = nullptr;       ///< [rows]
  const void* d_residual = nullptr;  ///< [rows, width], added to dx; or null
  void* dx = nullptr;                ///< [rows, width]
  void* d_weight = nullptr;          ///< [width], added to; or null
  void* d_bias = nullptr;            ///< [width], added to; or null
  float* scratch = nullptr;          ///< [layer_norm_partials(rows), 2, width]
};

/// Blocks, and so partial sums of the parameter gradients, of the backward.
int64_t layer_norm_partials(int64_t rows);
void layer_norm_backward(Element element, const LayerNormBackward& args, cudaStream_t stream);

}  // namespace reknit::kernels
