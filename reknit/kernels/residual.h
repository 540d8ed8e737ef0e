// Bias and residual of a product on CUDA, in one pass.
#pragma once

#include "reknit/kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reknit::kernels {

struct AddResidual {
  int64_t rows = 0;
  int64_t width = 0;
  void* y = nullptr;               ///< [rows, width] += bias + residual, rounded once
  const void* bias = nullptr;      ///< [width] or null
  const void* residual = nullptr;  ///< [rows, width]
};
void add_residual(Element element, const AddResidual& args, cudaStream_t stream);

}  // namespace reknit::kernels
