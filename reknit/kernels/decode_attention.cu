// Decode attention: a block per (sequence, key-value head, chunk of tokens), then a
// merge of the chunks. Lanes hold the head's elements, groups of lanes a token each.
#include "reknit/kernels/decode_attention.h"

#include "reknit/kernels/device.cuh"

#include <algorithm>

namespace reknit::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int64_t kChunk =
    512;                    // tokens of a block; fixed, so that bits do not depend on the batch
constexpr int kUnroll = 4;  // tokens that a group of lanes loads at once
constexpr float kLog2E = 1.4426950408889634f;

/// How a block is cut: a token's row is kLanes lanes of kPacks packs of kSize elements.
template <class Type, int kSizeOf, int kLanesOf, int kPacksOf, int kHeadsOf>
struct Cut {
  using T = Type;
  static constexpr int kSize = kSizeOf;
  static constexpr int kLanes = kLanesOf;
  static constexpr int kPacks = kPacksOf;
  static constexpr int kHeads = kHeadsOf;  // query heads that share each load
  static constexpr int kGroups = kThreads / kLanes;
  static constexpr int kElements = kSize * kPacks;  // of a lane
};

template <class C>
__device__ int element_of(int e) {
  const int lane = threadIdx.x % C::kLanes;
  return ((e / C::kSize) * C::kLanes + lane) * C::kSize + e % C::kSize;
}

/// This lane's elements of a row, 0 past its end; unpacked only where they are used, so
/// that many rows can be on their way at once.
template <class C>
struct Row {
  using T = typename C::T;
  Pack<T, C::kSize> pack[C::kPacks];

  __device__ void load(const T* row, int dim) {
#pragma unroll
    for (int p = 0; p < C::kPacks; ++p) {
      const int first = element_of<C>(p * C::kSize);
      pack[p] = first < dim ? load_pack<T, C::kSize>(row + first) : Pack<T, C::kSize>{};
    }
  }
  __device__ void store(T* row, int dim) const {
#pragma unroll
    for (int p = 0; p < C::kPacks; ++p) {
      if (element_of<C>(p * C::kSize) < dim) {
        store_pack<T, C::kSize>(row + element_of<C>(p * C::kSize), pack[p]);
      }
    }
  }
  __device__ float at(int e) const {
    return to_float(pack[e / C::kSize].at[e % C::kSize]);
  }
};

/// A softmax in progress over some tokens: out = mixed / total after the last one.
template <class C>
struct Running {
  float top = -INFINITY;
  float total = 0;
  float mixed[C::kElements] = {};

  __device__ void rescale(float new_top) {
    const float factor = top == new_top ? 1.0f : exp2f(top - new_top);
    top = new_top;
    total *= factor;
#pragma unroll
    for (int e = 0; e < C::kElements; ++e) {
      mixed[e] *= factor;
    }
  }
};

/// Where the block's sequence lies, and the tokens [begin, end) that are the block's.
struct Place {
  int64_t sequence;
  int64_t kv_head;
  int64_t first_head;
  int64_t length;  // cached tokens; the new one has this number
  int64_t begin;
  int64_t end;
  bool valid;
  int64_t cache_row;  // of token 0 in the slot
};

/// Tokens that a sequence may have.
__host__ __device__ int64_t limit_of(const Cache& cache) {
  return cache.used == 0 ? cache.capacity : cache.used;
}

template <class C>
__device__ Place find_place(const DecodeAttention& a) {
  const int64_t shared = a.num_heads / a.num_kv_heads;
  const int64_t tiles = (shared + C::kHeads - 1) / C::kHeads;
  Place p;
  p.sequence = blockIdx.x;
  p.kv_head = blockIdx.y / tiles;
  p.first_head = p.kv_head * shared + blockIdx.y % tiles * C::kHeads;
  p.length = a.length_of[p.sequence];
  const int64_t slot = a.slot_of[p.sequence];
  p.valid = slot >= 0 && slot < a.cache.slots && p.length >= 0 && p.length < limit_of(a.cache);
  p.begin = blockIdx.z * kChunk;
  p.end = p.begin + kChunk < p.length + 1 ? p.begin + kChunk : p.length + 1;
  p.cache_row = (slot * a.cache.capacity * a.num_kv_heads + p.kv_head) * a.head_dim;
  return p;
}

/// Tokens begin + group, begin + group + kGroups, ... of the block's chunk. A group that
/// has none left reads the last one again and gives it no weight.
template <class C>
__device__ void attend_group(const DecodeAttention& a, const Place& p,
                             const float (*q)[C::kElements], const float* slope,
                             Running<C>* running) {
  using T = typename C::T;
  const int dim = static_cast<int>(a.head_dim);
  const int group = threadIdx.x / C::kLanes;
  const int64_t token_stride = a.num_kv_heads * a.head_dim;
  const int64_t new_row = p.sequence * a.kv_strides.row + p.kv_head * a.kv_strides.head;
  const T* const new_key = static_cast<const T*>(a.k) + new_row;
  const T* const new_value = static_cast<const T*>(a.v) + new_row;
  const T* const keys = static_cast<const T*>(a.cache.k) + p.cache_row;
  const T* const values = static_cast<const T*>(a.cache.v) + p.cache_row;
  for (int64_t base = p.begin; base < p.end; base += C::kGroups * kUnroll) {
    Row<C> key[kUnroll], value[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t mine = base + u * C::kGroups + group;
      const int64_t t = mine < p.end ? mine : p.end - 1;
      key[u].load(t == p.length ? new_key : keys + t * token_stride, dim);
      value[u].load(t == p.length ? new_value : values + t * token_stride, dim);
    }
#pragma unroll
    for (int h = 0; h < C::kHeads; ++h) {
      float score[kUnroll];
      float top = running[h].top;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float dot = 0;
#pragma unroll
        for (int e = 0; e < C::kElements; ++e) {
          dot += q[h][e] * key[u].at(e);
        }
#pragma unroll
        for (int step = C::kLanes / 2; step > 0; step /= 2) {
          dot += __shfl_xor_sync(kAllLanes, dot, step);
        }
        const int64_t t = base + u * C::kGroups + group;
        score[u] = t < p.end ? dot + slope[h] * static_cast<float>(t - p.length) : -INFINITY;
        top = fmaxf(top, score[u]);
      }
      if (top == -INFINITY) {
        continue;
      }
      running[h].rescale(top);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const float weight = exp2f(score[u] - top);
        running[h].total += weight;
#pragma unroll
        for (int e = 0; e < C::kElements; ++e) {
          running[h].mixed[e] += weight * value[u].at(e);
        }
      }
    }
  }
}

/// Asks for what the cache holds of the block's chunk, line by line, so that it is near when
/// it is read; nothing in the kernels ahead writes it.
template <class C>
__device__ void fetch_chunk(const DecodeAttention& a, const Place& p) {
  using T = typename C::T;
  constexpr int kLine = 128 / static_cast<int>(sizeof(T));
  const int64_t stride = a.num_kv_heads * a.head_dim;
  const int lines = (static_cast<int>(a.head_dim) + kLine - 1) / kLine;
  const int tokens = static_cast<int>((p.end < p.length ? p.end : p.length) - p.begin);
  for (int i = threadIdx.x; i < tokens * lines; i += kThreads) {
    const int64_t at = p.cache_row + (p.begin + i / lines) * stride + i % lines * kLine;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const T*>(a.cache.k) + at));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const T*>(a.cache.v) + at));
  }
}

/// The groups of a warp into one; every group gets it.
template <class C>
__device__ void merge_warp(Running<C>& running) {
  float top = running.top;
#pragma unroll
  for (int step = C::kLanes; step < kWarp; step *= 2) {
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step));
  }
  running.rescale(top);
#pragma unroll
  for (int step = C::kLanes; step < kWarp; step *= 2) {
    running.total += __shfl_xor_sync(kAllLanes, running.total, step);
#pragma unroll
    for (int e = 0; e < C::kElements; ++e) {
      running.mixed[e] += __shfl_xor_sync(kAllLanes, running.mixed[e], step);
    }
  }
}

/// Shared memory of a block: [kWarps] tops, [kWarps] totals, [kWarps][dim] mixtures.
template <class C>
__device__ void merge_groups(const DecodeAttention& a, const Place& p, int64_t head,
                             Running<C>& running, float* shared) {
  const int dim = static_cast<int>(a.head_dim);
  const int warp = threadIdx.x / kWarp;
  float* tops = shared;
  float* totals = tops + kWarps;
  float* mixtures = totals + kWarps;
  merge_warp(running);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) {
    tops[warp] = running.top;
    totals[warp] = running.total;
  }
  if (threadIdx.x % kWarp < C::kLanes) {
#pragma unroll
    for (int e = 0; e < C::kElements; ++e) {
      if (element_of<C>(e) < dim) {
        mixtures[warp * dim + element_of<C>(e)] = running.mixed[e];
      }
    }
  }
  __syncthreads();
  float top = -INFINITY;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    top = fmaxf(top, tops[w]);
  }
  float factor[kWarps];
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    factor[w] = tops[w] == -INFINITY ? 0.0f : exp2f(tops[w] - top);
    total += factor[w] == 0.0f ? 0.0f : totals[w] * factor[w];
  }
  const int64_t row = p.sequence * a.num_heads + head;
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    float mixed = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      mixed += factor[w] == 0.0f ? 0.0f : mixtures[w * dim + d] * factor[w];
    }
    if (gridDim.z == 1) {
      static_cast<typename C::T*>(a.out)[row * dim + d] = from_float<typename C::T>(mixed / total);
    } else {
      a.scratch[(row * gridDim.z + blockIdx.z) * (dim + 2) + 2 + d] = mixed;
    }
  }
  if (gridDim.z > 1 && threadIdx.x == 0) {
    float* chunk = a.scratch + (row * gridDim.z + blockIdx.z) * (dim + 2);
    chunk[0] = top;
    chunk[1] = total;
  }
}

/// A place outside the cache: NaN, where it is seen.
template <class C>
__device__ void refuse(const DecodeAttention& a, const Place& p) {
  using T = typename C::T;
  const int64_t last = (p.kv_head + 1) * (a.num_heads / a.num_kv_heads);
  for (int64_t head = p.first_head; head < p.first_head + C::kHeads && head < last; ++head) {
    for (int64_t d = threadIdx.x; d < a.head_dim; d += kThreads) {
      static_cast<T*>(a.out)[(p.sequence * a.num_heads + head) * a.head_dim + d] =
          from_float<T>(NAN);
    }
  }
}

template <class C>
__device__ void keep_new(const DecodeAttention& a, const Place& p) {
  using T = typename C::T;
  const int dim = static_cast<int>(a.head_dim);
  const int64_t from = p.sequence * a.kv_strides.row + p.kv_head * a.kv_strides.head;
  const int64_t to = p.cache_row + p.length * a.num_kv_heads * a.head_dim;
  Row<C> row;
  row.load(static_cast<const T*>(a.k) + from, dim);
  row.store(static_cast<T*>(a.cache.k) + to, dim);
  row.load(static_cast<const T*>(a.v) + from, dim);
  row.store(static_cast<T*>(a.cache.v) + to, dim);
}

/// Block (sequence, key-value head and tile of its query heads, chunk). What is in the
/// cache is on its way before the kernels ahead have ended.
template <class C>
__global__ void __launch_bounds__(kThreads) chunk_kernel(DecodeAttention a) {
  using T = typename C::T;
  extern __shared__ float shared[];
  let_next_start();
  const Place p = find_place<C>(a);
  if (!p.valid) {
    wait_for_kernels_ahead();
    refuse<C>(a, p);
    return;
  }
  if (p.begin > p.length) {
    return;  // the block of the first chunk waits
  }
  fetch_chunk<C>(a, p);
  wait_for_kernels_ahead();
  const int dim = static_cast<int>(a.head_dim);
  const int64_t first_of_group = p.kv_head * (a.num_heads / a.num_kv_heads);
  const int64_t last_head = first_of_group + a.num_heads / a.num_kv_heads;
  float q[C::kHeads][C::kElements];
  float slope[C::kHeads];
  Running<C> running[C::kHeads];
#pragma unroll
  for (int h = 0; h < C::kHeads; ++h) {
    const int64_t head = p.first_head + h < last_head ? p.first_head + h : p.first_head;
    Row<C> row;
    row.load(static_cast<const T*>(a.q) + p.sequence * a.q_strides.row + head * a.q_strides.head,
             dim);
#pragma unroll
    for (int e = 0; e < C::kElements; ++e) {
      q[h][e] = row.at(e) * a.scale * kLog2E;
    }
    slope[h] = a.slopes == nullptr ? 0.0f : a.slopes[head] * kLog2E;
  }
  attend_group<C>(a, p, q, slope, running);
#pragma unroll
  for (int h = 0; h < C::kHeads; ++h) {
    if (p.first_head + h < last_head) {
      merge_groups<C>(a, p, p.first_head + h, running[h], shared);
    }
  }
  if (p.length < p.end && threadIdx.x < C::kLanes && p.first_head == first_of_group) {
    keep_new<C>(a, p);
  }
}

/// Block (sequence, head): its chunks into one.
template <class T>
__global__ void __launch_bounds__(kThreads) merge_kernel(DecodeAttention a, int64_t max_chunks) {
  let_next_start();
  wait_for_kernels_ahead();
  const int64_t length = a.length_of[blockIdx.x];
  const int64_t slot = a.slot_of[blockIdx.x];
  if (slot < 0 || slot >= a.cache.slots || length < 0 || length >= limit_of(a.cache)) {
    return;
  }
  const int64_t chunks = (length + kChunk) / kChunk;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * a.num_heads + blockIdx.y;
  const int64_t stride = a.head_dim + 2;
  const float* first = a.scratch + row * max_chunks * stride;
  float top = -INFINITY;
  for (int64_t c = 0; c < chunks; ++c) {
    top = fmaxf(top, first[c * stride]);
  }
  float total = 0;
  for (int64_t c = 0; c < chunks; ++c) {
    total += first[c * stride + 1] * exp2f(first[c * stride] - top);
  }
  for (int64_t d = threadIdx.x; d < a.head_dim; d += kThreads) {
    float mixed = 0;
    for (int64_t c = 0; c < chunks; ++c) {
      mixed += first[c * stride + 2 + d] * exp2f(first[c * stride] - top);
    }
    static_cast<T*>(a.out)[row * a.head_dim + d] = from_float<T>(mixed / total);
  }
}

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

int64_t num_chunks(const DecodeAttention& a) {
  return ceil_div(limit_of(a.cache), kChunk);
}

template <class C>
void launch_chunks(const DecodeAttention& a, cudaStream_t stream) {
  const int64_t tiles = ceil_div(a.num_heads / a.num_kv_heads, C::kHeads);
  const dim3 grid(static_cast<unsigned>(a.batch), static_cast<unsigned>(a.num_kv_heads * tiles),
                  static_cast<unsigned>(num_chunks(a)));
  const int64_t shared = kWarps * (a.head_dim + 2) * static_cast<int64_t>(sizeof(float));
  launch_overlapping("decode attention", chunk_kernel<C>, grid, dim3(kThreads), shared, stream, a);
}

template <class T, int kSize, int kLanes, int kPacks>
void launch_heads(const DecodeAttention& a, cudaStream_t stream) {
  const int64_t shared = a.num_heads / a.num_kv_heads;
  if (shared == 1) {
    launch_chunks<Cut<T, kSize, kLanes, kPacks, 1>>(a, stream);
  } else {
    launch_chunks<Cut<T, kSize, kLanes, kPacks, 4>>(a, stream);
  }
}

bool packs_fit(int64_t size, int64_t bytes, int64_t head_dim, HeadStrides q, HeadStrides kv,
               std::initializer_list<const void*> pointers) {
  return head_dim % size == 0 && q.row % size == 0 && q.head % size == 0 && kv.row % size == 0 &&
         kv.head % size == 0 &&
         std::all_of(pointers.begin(), pointers.end(),
                     [bytes](const void* p) { return aligned(p, bytes); });
}

}  // namespace

int64_t decode_scratch(const DecodeAttention& a) {
  return num_chunks(a) == 1 ? 0 : a.batch * a.num_heads * num_chunks(a) * (a.head_dim + 2);
}

void decode_attention(Element element, const DecodeAttention& a, cudaStream_t stream) {
  require<StateError>(a.head_dim >= 1 && a.head_dim <= kMaxHeadDim,
                      "decode attention with heads of ", a.head_dim, ": the largest is ",
                      kMaxHeadDim);
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kSize = kPackSize<T>;
    if (!packs_fit(kSize, 16, a.head_dim, a.q_strides, a.kv_strides,
                   {a.q, a.k, a.v, a.cache.k, a.cache.v})) {
      launch_heads<T, 1, 32, 8>(a, stream);
    } else if (a.head_dim <= 8 * kSize) {
      launch_heads<T, kSize, 8, 1>(a, stream);
    } else if (a.head_dim <= 16 * kSize) {
      launch_heads<T, kSize, 16, 1>(a, stream);
    } else if (a.head_dim <= 32 * kSize) {
      launch_heads<T, kSize, 32, 1>(a, stream);
    } else {
      launch_heads<T, kSize, 32, 2>(a, stream);
    }
    if (num_chunks(a) > 1) {
      launch_overlapping("decode attention merge", merge_kernel<T>,
                         dim3(static_cast<unsigned>(a.batch), static_cast<unsigned>(a.num_heads)),
                         dim3(kThreads), 0, stream, a, num_chunks(a));
    }
  });
}

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
