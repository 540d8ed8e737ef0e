// Decode attention: a block per (sequence, key-value head, chunk of tokens), then a
// merge of the chunks. Lanes hold the head's elements, groups of lanes a token each; what
// the cache holds streams through shared memory, each lane's part for itself.
#include "reknit/kernels/decode_attention.h"

#include "reknit/kernels/cache_packs.cuh"
#include "reknit/kernels/copy_async.cuh"
#include "reknit/kernels/device.cuh"

#include <algorithm>

namespace reknit::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunk =
    512;  // tokens of a block; fixed, so that bits do not depend on the batch
constexpr int64_t kManyHeads = 32;  // their blocks are smaller; not a matter of the batch
constexpr float kLog2E = 1.4426950408889634f;

/// How a block is cut: a token's row is kLanes lanes of kPacks packs of kSize elements.
template <class Type, int kSizeOf, int kLanesOf, int kPacksOf, int kHeadsOf, int kWarpsOf>
struct Cut {
  using T = Type;
  static constexpr int kSize = kSizeOf;
  static constexpr int kLanes = kLanesOf;
  static constexpr int kPacks = kPacksOf;
  static constexpr int kHeads = kHeadsOf;  // query heads that share each load
  static constexpr int kWarps = kWarpsOf;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kGroups = kThreads / kLanes;
  static constexpr int kElements = kSize * kPacks;     // of a lane
  static constexpr int kUnroll = kHeads == 1 ? 4 : 2;  // tokens that a group takes at once
  static constexpr int kStages = kWarps == 4 ? 3 : 8 / kUnroll;  // of that many, on their way
  static constexpr int kStep = kGroups * kUnroll;                // tokens of the block
  static constexpr int kRingBytes = kStages * kUnroll * 2 * kPacks * kThreads * kSize * sizeof(T);
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
  p.sequence = blockIdx.y;
  p.kv_head = blockIdx.x / tiles;
  p.first_head = p.kv_head * shared + blockIdx.x % tiles * C::kHeads;
  p.length = a.length_of[p.sequence];
  const int64_t slot = a.slot_of[p.sequence];
  p.valid = slot >= 0 && slot < a.cache.slots && p.length >= 0 && p.length < limit_of(a.cache);
  p.begin = blockIdx.z * kChunk;
  p.end = p.begin + kChunk < p.length + 1 ? p.begin + kChunk : p.length + 1;
  p.cache_row = (slot * a.cache.capacity * a.num_kv_heads + p.kv_head) * a.head_dim;
  return p;
}

/// The cached tokens of the block's chunk, step after step through shared memory. A lane
/// reads only what it copied; a group of lanes takes tokens begin + group + a multiple of
/// kGroups, and zeros where it has none left.
template <class C>
class Stream {
  using T = typename C::T;
  using Piece = Pack<T, C::kSize>;

 public:
  __device__ Stream(const DecodeAttention& a, const Place& p, unsigned char* ring)
      : ring_(reinterpret_cast<Piece*>(ring) + threadIdx.x),
        keys_(static_cast<const T*>(a.cache.k) + p.cache_row),
        values_(static_cast<const T*>(a.cache.v) + p.cache_row),
        stride_(a.num_kv_heads * a.head_dim),
        dim_(static_cast<int>(a.head_dim)),
        first_(p.begin + threadIdx.x / C::kLanes),
        end_(p.end < p.length ? p.end : p.length),
        steps_(static_cast<int>((end_ - p.begin + C::kStep - 1) / C::kStep)) {}

  __device__ int steps() const { return steps_; }
  __device__ int64_t token(int step, int u) const {
    return first_ + step * C::kStep + u * C::kGroups;
  }
  __device__ bool has(int64_t token) const { return token < end_; }

  __device__ void ask(int step) {
    if (step < steps_) {
      Piece* to = place(step % C::kStages);
#pragma unroll
      for (int u = 0; u < C::kUnroll; ++u) {
        const int64_t t = token(step, u);
        copy_row(to + 2 * u * C::kPacks * C::kThreads, keys_ + t * stride_, has(t));
        copy_row(to + (2 * u + 1) * C::kPacks * C::kThreads, values_ + t * stride_, has(t));
      }
    }
    end_copy_group();
  }

  /// Of the step asked for first, with C::kStages on their way.
  __device__ void wait() {
    wait_copy_groups<C::kStages - 1>();
  }
  __device__ void read(int step, int u, Row<C>& key, Row<C>& value) {
    const Piece* from = place(step % C::kStages) + 2 * u * C::kPacks * C::kThreads;
#pragma unroll
    for (int p = 0; p < C::kPacks; ++p) {
      key.pack[p] = from[p * C::kThreads];
      value.pack[p] = from[(C::kPacks + p) * C::kThreads];
    }
  }

 private:
  __device__ Piece* place(int stage) {
    return ring_ + stage * C::kUnroll * 2 * C::kPacks * C::kThreads;
  }

  __device__ void copy_row(Piece* to, const T* row, bool is) {
#pragma unroll
    for (int p = 0; p < C::kPacks; ++p) {
      const int at = element_of<C>(p * C::kSize);
      const bool inside = is && at < dim_;
      if constexpr (sizeof(Piece) == 16) {
        copy_async(to + p * C::kThreads, inside ? row + at : keys_, inside ? 16 : 0);
      } else {
        to[p * C::kThreads] = inside ? load_pack<T, C::kSize>(row + at) : Piece{};
      }
    }
  }

  Piece* ring_;
  const T* keys_;
  const T* values_;
  int64_t stride_;
  int dim_;
  int64_t first_;
  int64_t end_;
  int steps_;
};

template <class C>
__device__ float dot_of_group(const float* q, const Row<C>& key) {
  float dot = 0;
#pragma unroll
  for (int e = 0; e < C::kElements; ++e) {
    dot += q[e] * key.at(e);
  }
#pragma unroll
  for (int step = C::kLanes / 2; step > 0; step /= 2) {
    dot += __shfl_xor_sync(kAllLanes, dot, step);
  }
  return dot;
}

/// The cached tokens of this group.
template <class C>
__device__ void attend_cached(Stream<C>& stream, int64_t length, const float (*q)[C::kElements],
                              const float* slope, Running<C>* running) {
  for (int step = 0; step < stream.steps(); ++step) {
    stream.wait();
    Row<C> key[C::kUnroll], value[C::kUnroll];
#pragma unroll
    for (int u = 0; u < C::kUnroll; ++u) {
      stream.read(step, u, key[u], value[u]);
    }
    stream.ask(step + C::kStages);
#pragma unroll
    for (int h = 0; h < C::kHeads; ++h) {
      float score[C::kUnroll];
      float top = running[h].top;
#pragma unroll
      for (int u = 0; u < C::kUnroll; ++u) {
        const int64_t t = stream.token(step, u);
        const float dot = dot_of_group<C>(q[h], key[u]);
        score[u] = stream.has(t) ? dot + slope[h] * static_cast<float>(t - length) : -INFINITY;
        top = fmaxf(top, score[u]);
      }
      if (top == -INFINITY) {
        continue;
      }
      running[h].rescale(top);
#pragma unroll
      for (int u = 0; u < C::kUnroll; ++u) {
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

/// The new token: attended to by the first group of the chunk it is in, which also keeps it.
template <class C>
__device__ void attend_new(const DecodeAttention& a, const Place& p, const Row<C>& key,
                           const Row<C>& value, const float (*q)[C::kElements],
                           Running<C>* running) {
  using T = typename C::T;
  const int dim = static_cast<int>(a.head_dim);
  const bool mine = threadIdx.x < C::kLanes;
#pragma unroll
  for (int h = 0; h < C::kHeads; ++h) {
    const float score = dot_of_group<C>(q[h], key);
    running[h].top = mine ? score : -INFINITY;
    running[h].total = mine ? 1.0f : 0.0f;
#pragma unroll
    for (int e = 0; e < C::kElements; ++e) {
      running[h].mixed[e] = mine ? value.at(e) : 0.0f;
    }
  }
  if (mine && p.first_head == p.kv_head * (a.num_heads / a.num_kv_heads)) {
    const int64_t to = p.cache_row + p.length * a.num_kv_heads * a.head_dim;
    key.store(static_cast<T*>(a.cache.k) + to, dim);
    value.store(static_cast<T*>(a.cache.v) + to, dim);
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

/// Shared memory of a block: [C::kWarps] tops, [C::kWarps] totals, [C::kWarps][dim] mixtures.
template <class C>
__device__ void merge_groups(const DecodeAttention& a, const Place& p, int64_t head,
                             Running<C>& running, float* shared) {
  const int dim = static_cast<int>(a.head_dim);
  const int warp = threadIdx.x / kWarp;
  float* tops = shared;
  float* totals = tops + C::kWarps;
  float* mixtures = totals + C::kWarps;
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
  for (int w = 0; w < C::kWarps; ++w) {
    top = fmaxf(top, tops[w]);
  }
  float factor[C::kWarps];
  float total = 0;
#pragma unroll
  for (int w = 0; w < C::kWarps; ++w) {
    factor[w] = tops[w] == -INFINITY ? 0.0f : exp2f(tops[w] - top);
    total += factor[w] == 0.0f ? 0.0f : totals[w] * factor[w];
  }
  const int64_t row = p.sequence * a.num_heads + head;
  for (int d = threadIdx.x; d < dim; d += C::kThreads) {
    float mixed = 0;
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) {
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
    for (int64_t d = threadIdx.x; d < a.head_dim; d += C::kThreads) {
      static_cast<T*>(a.out)[(p.sequence * a.num_heads + head) * a.head_dim + d] =
          from_float<T>(NAN);
    }
  }
}

/// Block (key-value head and tile of its query heads, sequence, chunk). What is in the
/// cache is on its way before the kernels ahead have ended.
template <class C>
__global__ void __launch_bounds__(C::kThreads) chunk_kernel(DecodeAttention a) {
  using T = typename C::T;
  extern __shared__ __align__(16) unsigned char shared[];
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
  Stream<C> stream(a, p, shared);
  for (int step = 0; step < C::kStages; ++step) {
    stream.ask(step);
  }
  wait_for_kernels_ahead();
  const int dim = static_cast<int>(a.head_dim);
  const int64_t last_head = (p.kv_head + 1) * (a.num_heads / a.num_kv_heads);
  Row<C> rows[C::kHeads], key, value;
  float slope[C::kHeads];
#pragma unroll
  for (int h = 0; h < C::kHeads; ++h) {
    const int64_t head = p.first_head + h < last_head ? p.first_head + h : p.first_head;
    rows[h].load(
        static_cast<const T*>(a.q) + p.sequence * a.q_strides.row + head * a.q_strides.head, dim);
    slope[h] = a.slopes == nullptr ? 0.0f : a.slopes[head] * kLog2E;
  }
  const int64_t from = p.sequence * a.kv_strides.row + p.kv_head * a.kv_strides.head;
  key.load(static_cast<const T*>(a.k) + from, dim);
  value.load(static_cast<const T*>(a.v) + from, dim);
  float q[C::kHeads][C::kElements];
#pragma unroll
  for (int h = 0; h < C::kHeads; ++h) {
#pragma unroll
    for (int e = 0; e < C::kElements; ++e) {
      q[h][e] = rows[h].at(e) * a.scale * kLog2E;
    }
  }
  Running<C> running[C::kHeads];
  if (p.length < p.end) {
    attend_new<C>(a, p, key, value, q, running);
  }
  attend_cached<C>(stream, p.length, q, slope, running);
  wait_copy_groups<0>();
  __syncthreads();
#pragma unroll
  for (int h = 0; h < C::kHeads; ++h) {
    if (p.first_head + h < last_head) {
      merge_groups<C>(a, p, p.first_head + h, running[h], reinterpret_cast<float*>(shared));
    }
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

int64_t num_chunks(const DecodeAttention& a) {
  return ceil_div(limit_of(a.cache), kChunk);
}

template <class C>
void launch_chunks(const DecodeAttention& a, cudaStream_t stream) {
  const int64_t tiles = ceil_div(a.num_heads / a.num_kv_heads, C::kHeads);
  const dim3 grid(static_cast<unsigned>(a.num_kv_heads * tiles), static_cast<unsigned>(a.batch),
                  static_cast<unsigned>(num_chunks(a)));
  const int64_t sums = C::kWarps * (a.head_dim + 2) * static_cast<int64_t>(sizeof(float));
  const int64_t shared = std::max<int64_t>(C::kRingBytes, sums);
  launch_overlapping("decode attention", chunk_kernel<C>, grid, dim3(C::kThreads), shared, stream,
                     a);
}

template <class T, int kSize, int kLanes, int kPacks>
void launch_heads(const DecodeAttention& a, cudaStream_t stream) {
  if (a.num_heads != a.num_kv_heads) {
    launch_chunks<Cut<T, kSize, kLanes, kPacks, 4, 8>>(a, stream);
  } else if (a.num_heads < kManyHeads) {
    launch_chunks<Cut<T, kSize, kLanes, kPacks, 1, 8>>(a, stream);
  } else {
    launch_chunks<Cut<T, kSize, kLanes, kPacks, 1, 4>>(a, stream);
  }
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

}  // namespace reknit::kernels
