// Linear maps of few rows. A block streams a tile of the weight's rows (and one part of
// their length), and x beside it, through shared memory; its warps take turns along the
// length and their sums meet at the end, those of a cluster's blocks too. The weight is
// asked for before the kernels ahead have ended.
#include "reknit/kernels/skinny_linear.h"

#include "reknit/kernels/copy_async.cuh"
#include "reknit/kernels/device.cuh"

#include <algorithm>

namespace reknit::kernels {
namespace {

constexpr int kStep = 32;         // elements of the length that a warp takes at a time
constexpr int kPair = 2 * kStep;  // and before it gives way to the next warp: a line
constexpr int kStepBytes = 2 * kStep;
constexpr int kRing = 112 * 1024;  // bytes of a block at most, so that two fit a multiprocessor
constexpr int64_t kMultiprocessors = 132;  // what the cut is made for; bits depend on it

/// Sizes of a block with kTile rows of the weight and kColumns x 8 rows of x.
template <class Type, int kTileOf, int kColumnsOf>
struct Shape {
  using T = Type;
  static constexpr int kWarps = kTileOf == 64 ? 4 : 8;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kTile = kTileOf;
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kRowTiles = kTile / 16;
  static constexpr int kStageBytes = (kTile + 8 * kColumns) * kStepBytes;  // weight, then x
  static constexpr int kBatch = kTile == 64 ? 1 : 2;  // steps that a warp waits for at once
  static constexpr int kStages = kRing / kWarps / kStageBytes / kBatch * kBatch;
  static constexpr int kRingBytes = kStages * kStageBytes;  // of a warp
  static constexpr int kPitch = kTile + 4;                  // floats between columns of sums
  static constexpr int kSumBytes = kColumns * 8 * kPitch * 4;
  static constexpr int kOwnBytes = kWarps * std::max(kRingBytes, kSumBytes);
  static constexpr int kQuads = kTile / 4;  // groups of 4 columns in a row of the result
  static constexpr int kAllQuads = kColumns * 8 * kQuads;
  static constexpr int kMostQuads = (kAllQuads + kThreads - 1) / kThreads;  // a thread

  /// The block's own, and behind it the sums that the blocks of its cluster send it.
  static int64_t shared_bytes(int64_t splits) {
    return kOwnBytes + (splits > 1 ? splits * kAllQuads * 16 : 0);
  }
};

template <class T>
__device__ void multiply(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                         uint32_t b0, uint32_t b1);
template <>
__device__ inline void multiply<__half>(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply<__nv_bfloat16>(float (&sum)[4], uint32_t a0, uint32_t a1,
                                               uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// The cluster's barrier in two halves: what a block wrote before the first, all see after
/// the second.
__device__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive;" ::: "memory");
#endif
}
__device__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}

/// Writes four floats to `place` of block `rank`'s shared memory.
__device__ void store_to_block(float4* place, int rank, float4 value) {
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(place)), "r"(rank));
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
#endif
}

__device__ float bend(float x, Curve curve) {
  switch (curve) {
    case Curve::kNone:
      return x;
    case Curve::kRelu:
      return x > 0.0f || x != x ? x : 0.0f;
    case Curve::kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.7071067811865475f));
    case Curve::kGeluTanh:
      return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    case Curve::kSilu:
      return x / (1.0f + expf(-x));
  }
  return x;
}

/// A warp's walk along its part of the weight's tile. A lane reads only what it copied.
template <class S>
class Walk {
  using T = typename S::T;

 public:
  __device__ Walk(const SkinnyLinear& a, int64_t first_row, int64_t begin, int64_t length,
                  unsigned char* ring)
      : ring_(ring),
        steps_(2 * static_cast<int>((length / kPair - warp() + S::kWarps - 1) / S::kWarps)) {
    const int64_t from = begin + warp() * kPair + lane() % 4 * 8;
    const T* weight = static_cast<const T*>(a.weight);
#pragma unroll
    for (int c = 0; c < S::kTile / 8; ++c) {
      const int64_t row = first_row + c * 8 + lane() / 4;
      rows_[c] = weight + (row < a.out ? row : 0) * a.in + from;
    }
    const int row = lane() / 4;
    rows_left_ = static_cast<int>(a.rows) - row;
    x_ = static_cast<const T*>(a.x) + (rows_left_ > 0 ? row : 0) * a.in + from;
    x_stride_ = 8 * a.in;
  }

  /// What needs no kernel ahead to have ended.
  __device__ void ask_weight() {
    for (int step = 0; step < S::kStages; ++step) {
      if (step < steps_) {
        ask_weight(step, step);
      }
    }
  }

  /// To be called once x can be read; `asked` is called when the first of x is on its way.
  template <class Asked>
  __device__ void run(float (&sums)[S::kRowTiles][S::kColumns][4], Asked asked) {
    for (int step = 0; step < S::kStages; ++step) {
      if (step < steps_) {
        ask_x(step, step);
      }
      end_copy_group();
    }
    asked();
    int stage = 0;
    for (int step = 0; step < steps_; step += S::kBatch) {
      wait_copy_groups<S::kStages - S::kBatch>();
#pragma unroll
      for (int k = 0; k < S::kBatch; ++k) {
        add(sums, ring_ + (stage + k) * S::kStageBytes);
      }
#pragma unroll
      for (int k = 0; k < S::kBatch; ++k) {
        if (step + k + S::kStages < steps_) {
          ask_weight(step + k + S::kStages, stage + k);
          ask_x(step + k + S::kStages, stage + k);
        }
        end_copy_group();
      }
      stage = stage + S::kBatch == S::kStages ? 0 : stage + S::kBatch;
    }
    wait_copy_groups<0>();
  }

 private:
  static __device__ int warp() {
    return static_cast<int>(threadIdx.x) / kWarp;
  }
  static __device__ int lane() {
    return static_cast<int>(threadIdx.x) % kWarp;
  }

  static __device__ int place(int step) {
    return step / 2 * S::kWarps * kPair + step % 2 * kStep;
  }

  __device__ void ask_weight(int step, int stage) {
    unsigned char* to = ring_ + stage * S::kStageBytes + lane() * 16;
#pragma unroll
    for (int c = 0; c < S::kTile / 8; ++c) {
      copy_async(to + c * 8 * kStepBytes, rows_[c] + place(step));
    }
  }
  __device__ void ask_x(int step, int stage) {
    unsigned char* to = ring_ + stage * S::kStageBytes + S::kTile * kStepBytes + lane() * 16;
#pragma unroll
    for (int n = 0; n < S::kColumns; ++n) {
      const bool is = n * 8 < rows_left_;
      copy_async(to + n * 8 * kStepBytes, (is ? x_ + n * x_stride_ : x_) + place(step),
                 is ? 16 : 0);
    }
  }

  /// Lane (g, t) holds elements 8 t .. 8 t + 7 of rows g: the same order in weight and x,
  /// so the products need no other.
  __device__ void add(float (&sums)[S::kRowTiles][S::kColumns][4], const unsigned char* stage) {
    const auto* const mine = reinterpret_cast<const uint4*>(stage + lane() * 16);
    constexpr int kEight = 8 * kStepBytes / 16;  // rows
    uint4 x[S::kColumns];
#pragma unroll
    for (int n = 0; n < S::kColumns; ++n) {
      x[n] = mine[(S::kTile / 8 + n) * kEight];
    }
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
      const uint4 a = mine[2 * r * kEight];
      const uint4 b = mine[(2 * r + 1) * kEight];
#pragma unroll
      for (int n = 0; n < S::kColumns; ++n) {
        multiply<T>(sums[r][n], a.x, b.x, a.y, b.y, x[n].x, x[n].y);
        multiply<T>(sums[r][n], a.z, b.z, a.w, b.w, x[n].z, x[n].w);
      }
    }
  }

  unsigned char* ring_;
  int steps_;
  const T* rows_[S::kTile / 8];
  const T* x_;
  int rows_left_;
  int64_t x_stride_;
};

template <class S>
__device__ void store_sums(const float (&sums)[S::kRowTiles][S::kColumns][4], float* to) {
  const int row = static_cast<int>(threadIdx.x) % kWarp / 4;
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < S::kColumns; ++n) {
      float* at = to + (n * 8 + column) * S::kPitch + r * 16 + row;
      at[0] = sums[r][n][0];
      at[S::kPitch] = sums[r][n][1];
      at[8] = sums[r][n][2];
      at[S::kPitch + 8] = sums[r][n][3];
    }
  }
}

__device__ void add_to(float4& sum, float4 value) {
  sum.x += value.x;
  sum.y += value.y;
  sum.z += value.z;
  sum.w += value.w;
}

/// What a thread finishes of a block's result: groups of 4 columns of a row.
template <class S>
class Finish {
  using T = typename S::T;

 public:
  __device__ Finish(const SkinnyLinear& a, int64_t first_row, int split, int splits)
      : a_(a),
        first_row_(first_row),
        first_(split * S::kThreads + static_cast<int>(threadIdx.x)),
        stride_(splits * S::kThreads) {}

  __device__ void load_bias() {
#pragma unroll
    for (int i = 0; i < S::kMostQuads; ++i) {
      bias_[i] = a_.bias != nullptr && is(i)
                     ? load_pack<T, 4>(static_cast<const T*>(a_.bias) + column(i))
                     : Pack<T, 4>{};
    }
  }
  __device__ void load_residual() {
#pragma unroll
    for (int i = 0; i < S::kMostQuads; ++i) {
      residual_[i] = a_.residual != nullptr && is(i)
                         ? load_pack<T, 4>(static_cast<const T*>(a_.residual) + at(i))
                         : Pack<T, 4>{};
    }
  }

  /// `sum_of(quad)`: the four sums of a group.
  template <class SumOf>
  __device__ void store(SumOf sum_of) const {
#pragma unroll
    for (int i = 0; i < S::kMostQuads; ++i) {
      if (is(i)) {
        store_quad(i, sum_of(quad(i)));
      }
    }
  }

 private:
  __device__ int quad(int i) const {
    return first_ + i * stride_;
  }
  __device__ int64_t column(int i) const {
    return first_row_ + quad(i) % S::kQuads * 4;
  }
  __device__ int64_t at(int i) const {
    return quad(i) / S::kQuads * a_.out + column(i);
  }
  __device__ bool is(int i) const {
    return quad(i) < static_cast<int>(a_.rows) * S::kQuads && column(i) < a_.out;
  }

  __device__ void store_quad(int i, float4 sum) const {
    float value[4] = {sum.x, sum.y, sum.z, sum.w};
    if (a_.bias != nullptr) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        value[k] += to_float(bias_[i].at[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      value[k] = bend(value[k], a_.curve);
    }
    if (a_.residual != nullptr) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        value[k] += to_float(residual_[i].at[k]);
      }
    }
    if (a_.fp32_y) {
      *reinterpret_cast<float4*>(static_cast<float*>(a_.y) + at(i)) =
          float4{value[0], value[1], value[2], value[3]};
    } else {
      Pack<T, 4> pack;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        pack.at[k] = from_float<T>(value[k]);
      }
      store_pack<T, 4>(static_cast<T*>(a_.y) + at(i), pack);
    }
  }

  const SkinnyLinear& a_;
  int64_t first_row_;
  int first_;
  int stride_;
  Pack<T, 4> bias_[S::kMostQuads];
  Pack<T, 4> residual_[S::kMostQuads];
};

/// Block (tile, split), the splits of a tile side by side in a cluster.
template <class S>
__global__ void __launch_bounds__(S::kThreads)
    linear_kernel(const __grid_constant__ SkinnyLinear a, int splits) {
  extern __shared__ __align__(128) unsigned char shared[];
  let_next_start();
  if (splits > 1) {
    arrive_at_cluster();  // runs, so that others may write to it
  }
  const int split = static_cast<int>(blockIdx.x) % splits;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) / splits * S::kTile;
  const int64_t length = a.in / splits;
  Walk<S> walk(a, first_row, split * length, length, shared + threadIdx.x / kWarp * S::kRingBytes);
  walk.ask_weight();
  Finish<S> finish(a, first_row, split, splits);
  finish.load_bias();
  wait_for_kernels_ahead();
  float sums[S::kRowTiles][S::kColumns][4] = {};
  walk.run(sums, [&] { finish.load_residual(); });
  __syncthreads();
  auto* const parts = reinterpret_cast<float*>(shared);
  constexpr int kPart = S::kColumns * 8 * S::kPitch;
  store_sums<S>(sums, parts + threadIdx.x / kWarp * kPart);
  __syncthreads();

  const auto sum_of_warps = [&](int quad) {
    const float* const place = parts + quad / S::kQuads * S::kPitch + quad % S::kQuads * 4;
    float4 sum = *reinterpret_cast<const float4*>(place);
#pragma unroll
    for (int w = 1; w < S::kWarps; ++w) {
      add_to(sum, *reinterpret_cast<const float4*>(place + w * kPart));
    }
    return sum;
  };
  if (splits == 1) {
    finish.store(sum_of_warps);
    return;
  }
  auto* const sent = reinterpret_cast<float4*>(shared + S::kOwnBytes);  // [splits, kAllQuads]
  wait_for_cluster();
  for (int quad = threadIdx.x; quad < static_cast<int>(a.rows) * S::kQuads; quad += S::kThreads) {
    store_to_block(sent + split * S::kAllQuads + quad, quad / S::kThreads % splits,
                   sum_of_warps(quad));
  }
  arrive_at_cluster();
  wait_for_cluster();
  finish.store([&](int quad) {
    float4 sum = sent[quad];
    for (int from = 1; from < splits; ++from) {
      add_to(sum, sent[from * S::kAllQuads + quad]);
    }
    return sum;
  });
}

/// Whether the blocks of a cut find room at once; clusters of four and more need it to themselves.
bool has_room(int64_t tile, int64_t splits, int64_t blocks) {
  return (tile == 32 && splits == 1) ||
         blocks <= (splits <= 2 ? 2 * kMultiprocessors : kMultiprocessors);
}

/// The cut that should take least time: tiles of 64 rows where there are many, else by what
/// a multiprocessor and a block have to read. Fitted to times measured on an H200.
SkinnyCut choose_cut(int64_t in, int64_t out) {
  if (out >= 4 * 64 * kMultiprocessors) {
    return {64, 1};
  }
  SkinnyCut best;
  int64_t least = 0;
  for (const int64_t tile : {32, 16}) {
    int64_t joining = 30000;  // elements that could be read meanwhile
    for (const int64_t splits : {1, 2, 4, 8}) {
      const int64_t blocks = ceil_div(out, tile) * splits;
      const int64_t block = (tile + 18) * in / splits;  // x costs a little more than its 16 rows
      const int64_t cost =
          ceil_div(blocks, kMultiprocessors) * (block + 8192) + block * 13 / 10 + joining;
      joining += 30000;
      if (in % (kPair * splits) == 0 && (splits == 1 || in / splits >= 4 * kPair) &&
          has_room(tile, splits, blocks) && (best.tile == 0 || cost < least)) {
        best = {tile, splits};
        least = cost;
      }
    }
  }
  return best;
}

template <class S>
void launch_linear(const SkinnyLinear& a, const SkinnyCut& cut, cudaStream_t stream) {
  launch_as({.overlaps = true, .cluster = static_cast<unsigned>(cut.splits)}, "skinny linear",
            linear_kernel<S>, dim3(static_cast<unsigned>(ceil_div(a.out, S::kTile) * cut.splits)),
            dim3(S::kThreads), S::shared_bytes(cut.splits), stream, a,
            static_cast<int>(cut.splits));
}

template <class T, int kTile>
void with_columns(const SkinnyLinear& a, const SkinnyCut& cut, cudaStream_t stream) {
  if (a.rows <= 8) {
    launch_linear<Shape<T, kTile, 1>>(a, cut, stream);
  } else {
    launch_linear<Shape<T, kTile, 2>>(a, cut, stream);
  }
}

template <class T>
void with_tile(const SkinnyLinear& a, const SkinnyCut& cut, cudaStream_t stream) {
  switch (cut.tile) {
    case 16:
      return with_columns<T, 16>(a, cut, stream);
    case 32:
      return with_columns<T, 32>(a, cut, stream);
    case 64:
      return with_columns<T, 64>(a, cut, stream);
    default:
      throw StateError(str("a skinny linear map with tiles of ", cut.tile, " rows"));
  }
}

bool has_clusters() {
  int device = 0;
  int major = 0;
  check_cuda(cudaGetDevice(&device), "the current device");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "the compute capability");
  return major >= 9;
}

}  // namespace

bool skinny_linear_takes(Element element, const SkinnyLinear& a) {
  const auto fits = [](const void* p, int64_t bytes) { return p == nullptr || aligned(p, bytes); };
  return element != Element::kFp32 && a.rows > 0 && a.rows <= kMaxSkinnyRows && a.in % kPair == 0 &&
         a.in > 0 && a.out % 16 == 0 && fits(a.x, 16) && fits(a.weight, 16) && fits(a.bias, 8) &&
         fits(a.residual, 8) && fits(a.y, 16) && has_clusters();
}

void skinny_linear(Element element, const SkinnyLinear& a, cudaStream_t stream) {
  const SkinnyCut cut = a.cut.tile == 0 ? choose_cut(a.in, a.out) : a.cut;
  if (element == Element::kFp16) {
    with_tile<__half>(a, cut, stream);
  } else {
    with_tile<__nv_bfloat16>(a, cut, stream);
  }
}

}  // namespace reknit::kernels
