// How many rows of logits exist at one time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace reknit::ops {

/// Rows of a chunk of `columns` logits. More on CUDA, where the gradient of the table is
/// read and written once a chunk and would cost more than the products.
inline int64_t logit_chunk_rows(int64_t columns, bool cuda) {
  constexpr int64_t kRowTile = 128;  // whole tiles of a product
  const int64_t elements = cuda ? int64_t{64} << 20 : int64_t{8} << 20;
  const int64_t fewest = cuda ? 4 * kRowTile : 1;
  const int64_t fitting = std::max(fewest, elements / std::max<int64_t>(1, columns));
  return fitting > kRowTile ? fitting / kRowTile * kRowTile : fitting;
}

}  // namespace reknit::ops
