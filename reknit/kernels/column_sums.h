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

/// sum [width] += the rows of `partials`, rounded once. `next` [width] the same of the values
/// that follow those by `width`. Null: left out.
void add_partials(Element element, const Partials& partials, void* sum, cudaStream_t stream,
                  void* next = nullptr);

/// Rows of the scratch that column_sums needs.
int64_t column_sums_partials(int64_t rows, int64_t width);

/// sum [width] += the rows of x [rows, width]. `scratch` is fp32
/// [column_sums_partials(rows, width), width].
void column_sums(Element element, const void* x, int64_t rows, int64_t width, void* sum,
                 float* scratch, cudaStream_t stream);

/// The curve of an activation.
enum class Bend { kRelu, kGelu, kGeluTanh, kSilu };

/// An activation's backward in place, with the gradient of the bias before it.
struct BendBackward {
  Bend bend = Bend::kRelu;
  int64_t rows = 0;
  int64_t width = 0;
  const void* x = nullptr;   ///< [rows, width], the activation's input (ReLU: or its result)
  void* dy = nullptr;        ///< [rows, width], becomes the gradient of x
  void* sum = nullptr;       ///< [width] += the rows of that gradient; or null
  float* scratch = nullptr;  ///< as column_sums
};
void bend_backward(Element element, const BendBackward& args, cudaStream_t stream);

}  // namespace reknit::kernels
