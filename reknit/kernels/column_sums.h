// Sums over rows on CUDA, in a fixed order: gradients of biases.
#pragma once

#include "reknit/kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reknit::kernels {

/// fp32 partial sums: `rows` rows of `width` values, `stride` values apart.
struct Partials {
  const float* first = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t stride = 0;
};

/// sum [width] += the rows of `partials`, rounded once. Null `sum`: nothing.
void add_partials(Element element, const Partials& partials, void* sum, cudaStream_t stream);

/// Rows of the scratch that column_sums needs.
int64_t column_sums_partials(int64_t rows, int64_t width);

/// sum [width] += the rows of x [rows, width]. `scratch` is fp32
/// [column_sums_partials(rows, width), width].
void column_sums(Element element, const void* x, int64_t rows, int64_t width, void* sum,
                 float* scratch, cudaStream_t stream);

}  // namespace reknit::kernels
