// The key-value cache of one generation phase.
#pragma once

#include "reknit/models/seams.h"
#include "reknit/models/spec.h"

#include <vector>

namespace reknit {

/// Per layer k and v of [slots, tokens, kv_heads, head_dim]. Grows when a larger
/// request comes, never shrinks by itself; the sizes always come from the request.
class KvCache final : public KvView {
 public:
  KvCache(const ModelSpec& spec, at::ScalarType dtype, c10::Device device);

  /// Room for `slots` sequences of `tokens` tokens each. Contents are undefined after
  /// growth: only between generations. No sequence may grow past `tokens`,
  /// which a GPU rounds up, so that few sizes occur.
  void reserve(int64_t slots, int64_t tokens);
  void release();
  int64_t bytes() const;

  /// Which rows the next prefill or decode speaks of; both [B] int64 on the device.
  void select(at::Tensor slots, at::Tensor lengths);

  ops::KvLayer layer(int64_t index) const override { return layers_.at(index); }
  const at::Tensor& slots() const override { return slots_; }
  const at::Tensor& lengths() const override { return lengths_; }

 private:
  void grow(int64_t slots, int64_t tokens);

  int64_t kv_heads_;
  int64_t head_dim_;
  at::TensorOptions options_;
  std::vector<ops::KvLayer> layers_;
  int64_t num_slots_ = 0;
  int64_t num_tokens_ = 0;
  at::Tensor slots_;
  at::Tensor lengths_;
};

}  // namespace reknit
