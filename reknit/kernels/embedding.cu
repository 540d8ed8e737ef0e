// Rows of an embedding table, and its gradient: each run of equal ids is summed by one
// block.
#include "reknit/kernels/embedding.h"

#include "reknit/kernels/device.cuh"

namespace reknit::kernels {
namespace {

constexpr int kGroups = 8;
constexpr int kLookupThreads = 128;

/// Block i: token i.
template <class T, int kSize>
__global__ void __launch_bounds__(kLookupThreads) lookup_kernel(Embedding a) {
  let_next_start();
  wait_for_kernels_ahead();
  const int64_t token = blockIdx.x;
  const int64_t id = a.ids[token] + a.shift;
  const bool exists = id >= 0 && id < a.table_rows;
  const T* row = static_cast<const T*>(a.table) + (exists ? id : 0) * a.width;
  for (int64_t i = threadIdx.x * kSize; i < a.width; i += kLookupThreads * kSize) {
    auto pack = load_pack<T, kSize>(row + i);
    if (a.base != nullptr) {
      const auto base = load_pack<T, kSize>(static_cast<const T*>(a.base) + token * a.width + i);
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        pack.at[e] = from_float<T>(to_float(base.at[e]) + to_float(pack.at[e]));
      }
    }
#pragma unroll
    for (int e = 0; e < kSize && !exists; ++e) {
      pack.at[e] = from_float<T>(NAN);
    }
    store_pack<T, kSize>(static_cast<T*>(a.y) + token * a.width + i, pack);
  }
}

/// Block (c, i): the run of equal ids that starts at sorted place i (none: nothing),
/// columns of pack c * 32 + threadIdx.x. Group threadIdx.y sums every eighth token.
template <class T, int kSize>
__global__ void __launch_bounds__(kWarp* kGroups) run_kernel(EmbeddingBackward a) {
  __shared__ float scratch[kGroups][kWarp][kSize];
  const int64_t first = blockIdx.x;
  const int64_t id = a.sorted_ids[first];
  if ((first > 0 && a.sorted_ids[first - 1] == id) || id < 0 || id >= a.table_rows ||
      id == a.constant_row) {
    return;
  }
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kWarp + threadIdx.x) * kSize;
  const bool inside = column < a.width;
  const T* dy = static_cast<const T*>(a.dy);
  float sum[kSize] = {};
  for (int64_t i = first + threadIdx.y; inside && i < a.tokens && a.sorted_ids[i] == id;
       i += kGroups) {
    const auto pack = load_pack<T, kSize>(dy + a.order[i] * a.width + column);
    for (int e = 0; e < kSize; ++e) {
      sum[e] += to_float(pack.at[e]);
    }
  }
  for (int e = 0; e < kSize; ++e) {
    scratch[threadIdx.y][threadIdx.x][e] = sum[e];
  }
  __syncthreads();
  if (threadIdx.y == 0 && inside) {
    T* to = static_cast<T*>(a.d_table) + id * a.width + column;
    auto pack = load_pack<T, kSize>(to);
    for (int e = 0; e < kSize; ++e) {
      float total = to_float(pack.at[e]);
      for (int group = 0; group < kGroups; ++group) {
        total += scratch[group][threadIdx.x][e];
      }
      pack.at[e] = from_float<T>(total);
    }
    store_pack<T, kSize>(to, pack);
  }
}

}  // namespace

void embedding(Element element, const Embedding& a, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const bool packed = a.width % kPackSize<T> == 0 && aligned(a.table, 16) && aligned(a.y, 16) &&
                        aligned(a.base, 16);
    launch_overlapping("embedding", packed ? lookup_kernel<T, kPackSize<T>> : lookup_kernel<T, 1>,
                       dim3(static_cast<unsigned>(a.tokens)), dim3(kLookupThreads), 0, stream, a);
  });
}

void embedding_backward(Element element, const EmbeddingBackward& a, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const bool packed = a.width % kPackSize<T> == 0 && aligned(a.dy, 16) && aligned(a.d_table, 16);
    const int64_t size = packed ? kPackSize<T> : 1;
    launch("embedding backward", packed ? run_kernel<T, kPackSize<T>> : run_kernel<T, 1>,
           dim3(static_cast<unsigned>(a.tokens),
                static_cast<unsigned>(ceil_div(a.width, kWarp * size))),
           dim3(kWarp, kGroups), 0, stream, a);
  });
}

}  // namespace reknit::kernels
