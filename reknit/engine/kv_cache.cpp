#include "reknit/engine/kv_cache.h"

#include "reknit/engine/cache_tokens.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace reknit {

KvCache::KvCache(const ModelSpec& spec, at::ScalarType dtype, c10::Device device)
    : kv_heads_(spec.kv_heads),
      head_dim_(spec.head_dim()),
      options_(at::TensorOptions(dtype).device(device)),
      layers_(spec.layers) {}

void KvCache::reserve(int64_t slots, int64_t tokens) {
  tokens = cache_tokens(tokens, options_.device().is_cuda());
  grow(slots, tokens);
  for (ops::KvLayer& layer : layers_) {
    layer.used = tokens;
  }
}

void KvCache::grow(int64_t slots, int64_t tokens) {
  if (slots <= num_slots_ && tokens <= num_tokens_) {
    return;
  }
  const int64_t most_slots = std::max(num_slots_, slots);
  const int64_t most_tokens = std::max(num_tokens_, tokens);
  release();  // the old memory goes before the new comes
  for (ops::KvLayer& layer : layers_) {
    layer.k = at::empty({most_slots, most_tokens, kv_heads_, head_dim_}, options_);
    layer.v = at::empty_like(layer.k);
  }
  num_slots_ = most_slots;
  num_tokens_ = most_tokens;
}

void KvCache::release() {
  std::fill(layers_.begin(), layers_.end(), ops::KvLayer{});
  num_slots_ = 0;
  num_tokens_ = 0;
}

int64_t KvCache::bytes() const {
  int64_t bytes = 0;
  for (const ops::KvLayer& layer : layers_) {
    if (layer.k.defined()) {
      bytes += static_cast<int64_t>(layer.k.nbytes() + layer.v.nbytes());
    }
  }
  return bytes;
}

void KvCache::select(at::Tensor slots, at::Tensor lengths) {
  slots_ = std::move(slots);
  lengths_ = std::move(lengths);
}

}  // namespace reknit
