// Whether heads and the key-value cache can be read in packs of 16 bytes.
#pragma once

#include "reknit/kernels/decode_attention.h"
#include "reknit/kernels/device.cuh"

#include <algorithm>

namespace reknit::kernels {

/// Whether packs of `size` elements, `bytes` together, tile every head that is read.
inline bool packs_fit(int64_t size, int64_t bytes, int64_t head_dim, HeadStrides q, HeadStrides kv,
                      std::initializer_list<const void*> pointers) {
  return head_dim % size == 0 && q.row % size == 0 && q.head % size == 0 && kv.row % size == 0 &&
         kv.head % size == 0 &&
         std::all_of(pointers.begin(), pointers.end(),
                     [bytes](const void* p) { return aligned(p, bytes); });
}

}  // namespace reknit::kernels
