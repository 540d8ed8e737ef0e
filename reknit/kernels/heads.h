// Query, key and value as views of packed rows.
#pragma once

#include "reknit/kernels/attention.h"

namespace reknit::ops {

/// Views of qkv [N, (A + 2K) D] that share its memory; the last dimension is contiguous.
struct Heads {
  at::Tensor q;  ///< [N, A, D]
  at::Tensor k;  ///< [N, K, D]
  at::Tensor v;  ///< [N, K, D]
};

/// Throws StateError where the width of qkv is not that of `layout`.
Heads split_heads(const at::Tensor& qkv, const HeadLayout& layout);

}  // namespace reknit::ops
