// The two seams of a block that the engine fills in.
#pragma once

#include "reknit/kernels/attention.h"

#include <ATen/core/Tensor.h>

#include <typeinfo>

namespace reknit {

/// The key-value cache as a model sees it during generation. Owned by the engine; the
/// tensors stay at the same addresses while sequences are alive.
class KvView {
 public:
  virtual ~KvView() = default;
  virtual ops::KvLayer layer(int64_t index) const = 0;
  /// [B] int64, device: the cache slot of each row of the batch.
  virtual const at::Tensor& slots() const = 0;
  /// [B] int64, device: tokens already in the cache of each row (decode only).
  virtual const at::Tensor& lengths() const = 0;
};

/// Where a tensor-parallel run sums partial results of a block. Identity by default.
class BlockReduce {
 public:
  virtual ~BlockReduce() = default;
  virtual at::Tensor after_attention(at::Tensor partial) const { return partial; }
  virtual at::Tensor after_mlp(at::Tensor partial) const { return partial; }
  /// True for this class alone: then a sum may be fused with what comes after it.
  bool is_identity() const { return typeid(*this) == typeid(BlockReduce); }
};

}  // namespace reknit
