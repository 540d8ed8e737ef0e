// Keys and values of prompts into the cache: a block a token.
#include "reknit/kernels/cache_packs.cuh"
#include "reknit/kernels/decode_attention.h"
#include "reknit/kernels/device.cuh"

namespace reknit::kernels {
namespace {

constexpr int kThreads = 256;

/// Block i: token i of all prompts.
template <class T, int kSize>
__global__ void __launch_bounds__(kThreads) prompt_kernel(CachePrompts a) {
  const int64_t token = blockIdx.x;
  int64_t low = 0;
  int64_t high = a.batch;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (a.offsets[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int64_t t = token - a.offsets[low];
  const int64_t slot = a.slot_of[low];
  if (slot < 0 || slot >= a.cache.slots || t >= a.cache.capacity) {
    return;
  }
  const int64_t width = a.num_kv_heads * a.head_dim;
  const int64_t to = (slot * a.cache.capacity + t) * width;
  for (int64_t i = threadIdx.x * kSize; i < width; i += kThreads * kSize) {
    const int64_t from =
        token * a.kv_strides.row + i / a.head_dim * a.kv_strides.head + i % a.head_dim;
    store_pack<T, kSize>(static_cast<T*>(a.cache.k) + to + i,
                         load_pack<T, kSize>(static_cast<const T*>(a.k) + from));
    store_pack<T, kSize>(static_cast<T*>(a.cache.v) + to + i,
                         load_pack<T, kSize>(static_cast<const T*>(a.v) + from));
  }
}

}  // namespace

void cache_prompts(Element element, const CachePrompts& a, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const bool packed = packs_fit(kPackSize<T>, 16, a.head_dim, a.kv_strides, a.kv_strides,
                                  {a.k, a.v, a.cache.k, a.cache.v});
    launch("cache of prompts", packed ? prompt_kernel<T, kPackSize<T>> : prompt_kernel<T, 1>,
           dim3(static_cast<unsigned>(a.tokens)), dim3(kThreads), 0, stream, a);
  });
}

}  // namespace reknit::kernels
