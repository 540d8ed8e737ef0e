// Rows of an embedding table and the table's gradient on CUDA, without atomics.
#pragma once

#include "reknit/kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reknit::kernels {

struct Embedding {
  int64_t tokens = 0;
  int64_t width = 0;
  int64_t table_rows = 0;
  int64_t shift = 0;             ///< added to each id
  const int64_t* ids = nullptr;  ///< [tokens]
  const void* table = nullptr;   ///< [table_rows, width]
  const void* base = nullptr;    ///< [tokens, width], added; or null
  void* y = nullptr;             ///< [tokens, width]
};

/// y[i] = base[i] + table[ids[i] + shift]; NaN where that row does not exist.
void embedding(Element element, const Embedding& args, cudaStream_t stream);

struct EmbeddingBackward {
  int64_t tokens = 0;
  int64_t width = 0;
  int64_t table_rows = 0;
  int64_t constant_row = -1;            ///< an id that is left out
  const void* dy = nullptr;             ///< [tokens, width]
  const int64_t* sorted_ids = nullptr;  ///< [tokens], ascending
  const int64_t* order = nullptr;       ///< [tokens]: the token of each sorted id, stable
  void* d_table = nullptr;              ///< [table_rows, width], added to
};

/// Ids outside the table are left out.
void embedding_backward(Element element, const EmbeddingBackward& args, cudaStream_t stream);

}  // namespace reknit::kernels
