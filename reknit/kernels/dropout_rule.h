// Which elements dropout keeps: one rule for CPU and CUDA. No torch.
#pragma once

#include "reknit/base/random.h"

#include <cstdint>

namespace reknit::kernels {

/// The rule of one place in a model.
struct DropoutRule {
  uint32_t threshold = 0;  ///< words below it drop their element
  float scale = 1;         ///< of what is kept
  uint64_t site = 0;

  static constexpr int64_t kPack = 4;  ///< elements that one call decides

  /// Words of elements [pack * kPack, ...) of a row. `head` is 0 for hidden states, and
  /// one more than its number for the probabilities of a head.
  REKNIT_HOST_DEVICE void words(uint64_t key, uint64_t head, uint64_t pack,
                                uint32_t out[kPack]) const {
    Philox{key}.block(pack, site << 32 | head, out);
  }
  REKNIT_HOST_DEVICE bool keeps(uint32_t word) const { return word >= threshold; }
};

/// x [heads, rows, width] -> y (may be x). Row i of head h belongs to the token with key
/// keys[(first_head + h) / num_heads, i]; `keys` is [sequences, rows].
struct DropoutRows {
  const void* x = nullptr;
  void* y = nullptr;
  const int64_t* keys = nullptr;
  int64_t heads = 1;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t first_head = 0;
  int64_t num_heads = 1;
  bool by_head = false;  ///< each head has a mask of its own

  /// The key and the head's word of row `row` of all heads * rows.
  REKNIT_HOST_DEVICE uint64_t key(int64_t row) const {
    const int64_t sequence = (first_head + row / rows) / num_heads;
    return static_cast<uint64_t>(keys[sequence * rows + row % rows]);
  }
  REKNIT_HOST_DEVICE uint64_t head(int64_t row) const {
    return by_head ? static_cast<uint64_t>((first_head + row / rows) % num_heads) + 1 : 0;
  }
};

}  // namespace reknit::kernels
