// Linear maps of few rows on CUDA: as fast as the weight can be read.
#pragma once

#include "reknit/kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reknit::kernels {

enum class Curve { kNone, kRelu, kGelu, kGeluTanh, kSilu };

/// How the weight is cut: a block takes `tile` of its rows and one of `splits` equal parts
/// of their length. Zeros: chosen from the weight's shape.
struct SkinnyCut {
  int64_t tile = 0;    ///< 16, 32 or 64
  int64_t splits = 0;  ///< 1, 2, 4 or 8
};

/// y = curve(x weight^T + bias) + residual, with one rounding at the end.
struct SkinnyLinear {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
  const void* x = nullptr;         ///< [rows, in]
  const void* weight = nullptr;    ///< [out, in]
  const void* bias = nullptr;      ///< [out] or null
  const void* residual = nullptr;  ///< [rows, out] or null
  Curve curve = Curve::kNone;
  void* y = nullptr;  ///< [rows, out]
  bool fp32_y = false;
  SkinnyCut cut;
};

/// With more, cuBLAS is faster.
constexpr int64_t kMaxSkinnyRows = 16;

/// Whether skinny_linear does it on the current device: 16 bits, few rows, sizes that are
/// multiples of 64 (in) and 16 (out), aligned pointers, compute capability 9.0 or higher.
bool skinny_linear_takes(Element element, const SkinnyLinear& args);

/// fp32 sums. Bits of a row depend on that row and the cut alone, not on the other rows.
void skinny_linear(Element element, const SkinnyLinear& args, cudaStream_t stream);

}  // namespace reknit::kernels
