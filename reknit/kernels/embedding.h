// The gradient of an embedding table on CUDA, without atomics.
#pragma once

#include "reknit/kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reknit::kernels {

struct EmbeddingBackward {
  int64_t tokens = 0;
  int64_t width = 0;
  int64_t table_rows = 0;
  const void* dy = nullptr;             ///< [tokens, width]
  const int64_t* sorted_ids = nullptr;  ///< [tokens], ascending
  const int64_t* order = nullptr;       ///< [tokens]: the token of each sorted id, stable
  void* d_table = nullptr;              ///< [table_rows, width], added to
};

/// Ids outside the table are left out.
void embedding_backward(Element element, const EmbeddingBackward& args, cudaStream_t stream);

}  // namespace reknit::kernels
