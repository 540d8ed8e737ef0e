// A key-value cache of plain tensors, with room for every sequence.
#pragma once

#include "reknit/models/seams.h"
#include "reknit/models/spec.h"

#include <ATen/ATen.h>

#include <vector>

namespace reknit {

class PlainCache : public KvView {
 public:
  /// Row b of the batch lives in slot slots[b] of `num_slots`. Filled with NaN.
  PlainCache(const ModelSpec& spec, const std::vector<int64_t>& slots, int64_t num_slots,
             int64_t capacity, at::ScalarType dtype, c10::Device device)
      : slots_(at::tensor(slots, at::kLong).to(device)),
        lengths_(at::zeros({static_cast<int64_t>(slots.size())}, slots_.options())) {
    const auto options = at::dtype(dtype).device(device);
    for (int64_t layer = 0; layer < spec.layers; ++layer) {
      const std::vector<int64_t> shape{num_slots, capacity, spec.kv_heads, spec.head_dim()};
      const double nothing = std::numeric_limits<double>::quiet_NaN();
      layers_.push_back({at::full(shape, nothing, options), at::full(shape, nothing, options)});
    }
  }

  ops::KvLayer layer(int64_t index) const override { return layers_.at(index); }
  const at::Tensor& slots() const override { return slots_; }
  const at::Tensor& lengths() const override { return lengths_; }

  void set_lengths(const std::vector<int64_t>& lengths) {
    lengths_.copy_(at::tensor(lengths, at::kLong));
  }
  void advance() { lengths_.add_(1); }

 private:
  at::Tensor slots_;
  at::Tensor lengths_;
  std::vector<ops::KvLayer> layers_;
};

}  // namespace reknit
