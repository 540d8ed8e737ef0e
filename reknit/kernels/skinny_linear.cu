// Linear maps of few rows. A block streams a tile of the weight's rows (and one part of
// their length) through shared memory; its warps take turns along the length and their
// sums meet at the end, those of a cluster's blocks too. The weight is asked for before
// the kernels ahead have ended.
#include "reknit/kernels/skinny_linear.h"

#include "reknit/kernels/device.cuh"

#include <algorithm>

namespace reknit::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kStep = 32;         // elements of the length that a warp takes at a time
constexpr int kPair = 2 * kStep;  // and before it gives way to the next warp: a line
constexpr int kStepBytes = 2 * kStep;
constexpr int64_t kBlocksAtOnce = 132;  // what the cut is made for; bits depend on it

/// Sizes of a block with kTile rows of the weight and kColumns x 8 rows of x.
template <class Type, int kTileOf, int kColumnsOf>
struct Shape {
  using T = Type;
  static constexpr int kTile = kTileOf;
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kRowTiles = kTile / 16;
  static constexpr int kStageBytes = kTile * kStepBytes;
  static constexpr int kStages = kTile == 64 ? 6 : kTile == 48 ? 8 : kTile == 32 ? 10 : 16;
  static constexpr int kAhead = 8 / kColumns;               // steps of x
  static constexpr int kRingBytes = kStages * kStageBytes;  // of a warp
  static constexpr int kPitch = kTile + 4;                  // floats between columns of sums
  static constexpr int kSumBytes = kColumns * 8 * kPitch * 4;
  static constexpr int kShared = kWarps * std::max(kRingBytes, kSumBytes);
};

__device__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to)),
               "l"(from)
               : "memory");
}
__device__ void end_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ void wait_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

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

__device__ void meet_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
#endif
}

/// Four floats at `place` of this block's shared memory, read from block `rank`'s.
__device__ float4 load_from_block(const float* place, int rank) {
  float4 value{};
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(place)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
#endif
  return value;
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

/// A warp's walk along its part of the weight's tile.
template <class S>
class Walk {
  using T = typename S::T;

 public:
  __device__ Walk(const SkinnyLinear& a, int64_t first_row, int64_t begin, int64_t length,
                  unsigned char* ring)
      : ring_(ring), steps_(2 * static_cast<int>((length / kPair - warp() + kWarps - 1) / kWarps)) {
    const int64_t from = begin + warp() * kPair;
    const T* weight = static_cast<const T*>(a.weight);
#pragma unroll
    for (int c = 0; c < S::kTile / 8; ++c) {
      const int64_t row = first_row + c * 8 + lane() / 4;
      rows_[c] = weight + (row < a.out ? row : 0) * a.in + from + lane() % 4 * 8;
    }
#pragma unroll
    for (int n = 0; n < S::kColumns; ++n) {
      const int64_t row = n * 8 + lane() / 4;
      x_[n] =
          row < a.rows ? static_cast<const T*>(a.x) + row * a.in + from + lane() % 4 * 8 : nullptr;
    }
  }

  __device__ void ask_first() {
    for (int step = 0; step < S::kStages; ++step) {
      ask(step);
    }
  }

  /// To be called once x can be read.
  __device__ void run(float (&sums)[S::kRowTiles][S::kColumns][4]) {
    uint4 x[S::kAhead][S::kColumns];
#pragma unroll
    for (int i = 0; i < S::kAhead; ++i) {
      load_x(x[i], i);
    }
    int stage = 0;
    for (int first = 0; first < steps_; first += S::kAhead) {
#pragma unroll
      for (int i = 0; i < S::kAhead; ++i) {
        const int step = first + i;
        if (step < steps_) {
          wait_copy_groups<S::kStages - 1>();
          __syncwarp();
          add(sums, x[i], ring_ + stage * S::kStageBytes);
          load_x(x[i], step + S::kAhead);
          __syncwarp();
          ask(step + S::kStages, stage);
          stage = stage + 1 == S::kStages ? 0 : stage + 1;
        }
      }
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
    return step / 2 * kWarps * kPair + step % 2 * kStep;
  }

  __device__ void ask(int step) {
    ask(step, step);
  }
  __device__ void ask(int step, int stage) {
    if (step < steps_) {
      unsigned char* to = ring_ + stage * S::kStageBytes + lane() * 16;
#pragma unroll
      for (int c = 0; c < S::kTile / 8; ++c) {
        copy_async(to + c * 8 * kStepBytes, rows_[c] + place(step));
      }
    }
    end_copy_group();
  }

  __device__ void load_x(uint4 (&to)[S::kColumns], int step) {
#pragma unroll
    for (int n = 0; n < S::kColumns; ++n) {
      to[n] = step < steps_ && x_[n] != nullptr
                  ? *reinterpret_cast<const uint4*>(x_[n] + place(step))
                  : uint4{};
    }
  }

  /// Lane (g, t) holds elements 8 t .. 8 t + 7 of rows g: the same order in weight and x,
  /// so the products need no other.
  __device__ void add(float (&sums)[S::kRowTiles][S::kColumns][4], const uint4 (&x)[S::kColumns],
                      const unsigned char* stage) {
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
      const auto* low = reinterpret_cast<const uint4*>(stage + r * 16 * kStepBytes + lane() * 16);
      const uint4 a = *low;
      const uint4 b = *(low + 8 * kStepBytes / 16);
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
  const T* x_[S::kColumns];
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

/// Four columns of row `row` of the result.
template <class T>
__device__ void finish(const SkinnyLinear& a, int64_t row, int64_t column, float4 sum) {
  float value[4] = {sum.x, sum.y, sum.z, sum.w};
  if (a.bias != nullptr) {
    const auto bias = load_pack<T, 4>(static_cast<const T*>(a.bias) + column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value[i] += to_float(bias.at[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    value[i] = bend(value[i], a.curve);
  }
  const int64_t at = row * a.out + column;
  if (a.residual != nullptr) {
    const auto residual = load_pack<T, 4>(static_cast<const T*>(a.residual) + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value[i] += to_float(residual.at[i]);
    }
  }
  if (a.fp32_y) {
    *reinterpret_cast<float4*>(static_cast<float*>(a.y) + at) =
        float4{value[0], value[1], value[2], value[3]};
  } else {
    Pack<T, 4> pack;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pack.at[i] = from_float<T>(value[i]);
    }
    store_pack<T, 4>(static_cast<T*>(a.y) + at, pack);
  }
}

/// Block (tile, split), the splits of a tile side by side in a cluster.
template <class S>
__global__ void __launch_bounds__(kThreads) linear_kernel(SkinnyLinear a, int splits) {
  extern __shared__ __align__(128) unsigned char shared[];
  let_next_start();
  const int split = static_cast<int>(blockIdx.x) % splits;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) / splits * S::kTile;
  const int64_t length = a.in / splits;
  Walk<S> walk(a, first_row, split * length, length, shared + threadIdx.x / kWarp * S::kRingBytes);
  walk.ask_first();
  wait_for_kernels_ahead();
  float sums[S::kRowTiles][S::kColumns][4] = {};
  walk.run(sums);
  __syncthreads();
  auto* const parts = reinterpret_cast<float*>(shared);
  constexpr int kPart = S::kColumns * 8 * S::kPitch;
  store_sums<S>(sums, parts + threadIdx.x / kWarp * kPart);
  __syncthreads();

  constexpr int kQuads = S::kTile / 4;  // of a row of the result
  const int quads = static_cast<int>(a.rows) * kQuads;
  const auto place = [](int quad) { return quad / kQuads * S::kPitch + quad % kQuads * 4; };
  const auto sum_of_warps = [&](int quad) {
    float4 sum = *reinterpret_cast<const float4*>(parts + place(quad));
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      add_to(sum, *reinterpret_cast<const float4*>(parts + w * kPart + place(quad)));
    }
    return sum;
  };
  const auto finish_quad = [&](int quad, float4 sum) {
    const int64_t column = first_row + quad % kQuads * 4;
    if (column < a.out) {
      finish<typename S::T>(a, quad / kQuads, column, sum);
    }
  };
  if (splits == 1) {
    for (int quad = threadIdx.x; quad < quads; quad += kThreads) {
      finish_quad(quad, sum_of_warps(quad));
    }
    return;
  }
  for (int quad = threadIdx.x; quad < quads; quad += kThreads) {
    *reinterpret_cast<float4*>(parts + place(quad)) = sum_of_warps(quad);
  }
  meet_cluster();
  for (int quad = split * kThreads + threadIdx.x; quad < quads; quad += splits * kThreads) {
    float4 sum = load_from_block(parts + place(quad), 0);
    for (int other = 1; other < splits; ++other) {
      add_to(sum, load_from_block(parts + place(quad), other));
    }
    finish_quad(quad, sum);
  }
  meet_cluster();  // nobody leaves while its sums are read
}

/// The cut whose blocks, as many at once as there are multiprocessors, take least time.
SkinnyCut choose_cut(int64_t in, int64_t out) {
  SkinnyCut best;
  int64_t least = 0;
  for (const int64_t tile : {64, 48, 32, 16}) {
    for (const int64_t splits : {1, 2, 4, 8}) {
      if (in % (kPair * splits) != 0 || (splits > 1 && in / splits < kWarps * kPair)) {
        continue;
      }
      const int64_t rounds = ceil_div(ceil_div(out, tile) * splits, kBlocksAtOnce);
      // The weight's part, 16 rows of x, and what a block costs beside, in elements.
      const int64_t cost = rounds * ((tile + 16) * in / splits + 4096) + splits * 256;
      if (best.tile == 0 || cost < least) {
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
            dim3(kThreads), S::kShared, stream, a, static_cast<int>(cut.splits));
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
    case 48:
      return with_columns<T, 48>(a, cut, stream);
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
