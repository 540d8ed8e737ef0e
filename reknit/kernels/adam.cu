// Adam over ranges of flat buffers, sums of squares, accumulation.
#include "reknit/kernels/adam.h"

#include "reknit/kernels/device.cuh"

#include <algorithm>

namespace reknit::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 4;
constexpr int64_t kTile = kThreads * kPack * 2;  // elements of a block
constexpr int kMaxRanges = 64;                   // of one launch: they travel as its parameters

struct RangeTable {
  int32_t count;
  int64_t first_block[kMaxRanges + 1];
  AdamRange range[kMaxRanges];
};

__device__ int find_range(const RangeTable& table, int64_t block) {
  int low = 0;
  int high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.first_block[middle] <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

struct Moments {
  float master, m, v;
};

__device__ Moments step(Moments s, float grad, const AdamRange& range, const AdamConstants& c) {
  const float g = grad + range.l2 * s.master;
  s.m += (1.0f - c.beta1) * (g - s.m);
  s.v += (1.0f - c.beta2) * (g * g - s.v);
  s.master = s.master * range.keep - range.rate * s.m / (sqrtf(s.v) * c.v_scale + c.eps);
  return s;
}

template <class T>
__device__ void step_one(const AdamTensors& t, int64_t i, float scale, const AdamRange& range,
                         const AdamConstants& c) {
  const Moments s = step({t.master[i], t.exp_avg[i], t.exp_avg_sq[i]}, t.grad[i] * scale, range, c);
  t.master[i] = s.master;
  t.exp_avg[i] = s.m;
  t.exp_avg_sq[i] = s.v;
  if (t.weight != nullptr) {
    static_cast<T*>(t.weight)[i] = from_float<T>(s.master);
  }
}

template <class T>
__device__ void step_pack(const AdamTensors& t, int64_t i, float scale, const AdamRange& range,
                          const AdamConstants& c) {
  auto master = load_pack<float, kPack>(t.master + i);
  auto m = load_pack<float, kPack>(t.exp_avg + i);
  auto v = load_pack<float, kPack>(t.exp_avg_sq + i);
  const auto grad = load_pack<float, kPack>(t.grad + i);
  Pack<T, kPack> rounded;
#pragma unroll
  for (int e = 0; e < kPack; ++e) {
    const Moments s = step({master.at[e], m.at[e], v.at[e]}, grad.at[e] * scale, range, c);
    master.at[e] = s.master;
    m.at[e] = s.m;
    v.at[e] = s.v;
    rounded.at[e] = from_float<T>(s.master);
  }
  store_pack<float, kPack>(t.master + i, master);
  store_pack<float, kPack>(t.exp_avg + i, m);
  store_pack<float, kPack>(t.exp_avg_sq + i, v);
  if (t.weight != nullptr) {
    store_pack<T, kPack>(static_cast<T*>(t.weight) + i, rounded);
  }
}

/// Tiles start at multiples of the pack, so that packs stay aligned; the elements of a
/// pack outside the range are left alone.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kThreads)
    adam_kernel(AdamTensors t, AdamConstants c, RangeTable table) {
  const int r = find_range(table, blockIdx.x);
  const AdamRange range = table.range[r];
  const float scale = *t.grad_scale;
  const int64_t tile = range.begin / kPack * kPack + (blockIdx.x - table.first_block[r]) * kTile;
#pragma unroll
  for (int64_t part = 0; part < kTile; part += kThreads * kPack) {
    const int64_t i = tile + part + threadIdx.x * kPack;
    if (kPacked && i >= range.begin && i + kPack <= range.end) {
      step_pack<T>(t, i, scale, range, c);
    } else {
      for (int64_t e = i; e < i + kPack; ++e) {
        if (e >= range.begin && e < range.end) {
          step_one<T>(t, e, scale, range, c);
        }
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    squares_kernel(const float* __restrict__ x, int64_t count, bool packed,
                   double* __restrict__ partials) {
  __shared__ double scratch[kWarp];
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t in_packs = packed ? count / kPack * kPack : 0;
  double sum = 0;
  for (int64_t i = thread * kPack; i < in_packs; i += threads * kPack) {
    const auto pack = load_pack<float, kPack>(x + i);
    for (int e = 0; e < kPack; ++e) {
      sum += static_cast<double>(pack.at[e]) * static_cast<double>(pack.at[e]);
    }
  }
  for (int64_t i = in_packs + thread; i < count; i += threads) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  sum = block_reduce(sum, 0.0, scratch, Sum{});
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    sum_kernel(const double* __restrict__ partials, int64_t count, double* __restrict__ sum_out) {
  __shared__ double scratch[kWarp];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    sum += partials[i];
  }
  sum = block_reduce(sum, 0.0, scratch, Sum{});
  if (threadIdx.x == 0) {
    *sum_out = sum;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    accumulate_kernel(float* __restrict__ dst, const T* __restrict__ src, int64_t count,
                      bool packed) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t i = thread * kPack;
  if (packed && i + kPack <= count) {
    auto sum = load_pack<float, kPack>(dst + i);
    const auto more = load_pack<T, kPack>(src + i);
    for (int e = 0; e < kPack; ++e) {
      sum.at[e] += to_float(more.at[e]);
    }
    store_pack<float, kPack>(dst + i, sum);
  } else {
    for (int64_t e = i; e < i + kPack && e < count; ++e) {
      dst[e] += to_float(src[e]);
    }
  }
}

}  // namespace

void adam_update(Element element, const AdamTensors& t, const AdamConstants& constants,
                 const std::vector<AdamRange>& ranges, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const bool packed = aligned(t.master, 16) && aligned(t.exp_avg, 16) &&
                        aligned(t.exp_avg_sq, 16) && aligned(t.grad, 16) &&
                        aligned(t.weight, kPack * sizeof(T));
    for (size_t first = 0; first < ranges.size(); first += kMaxRanges) {
      RangeTable table{};
      table.count = static_cast<int32_t>(std::min<size_t>(kMaxRanges, ranges.size() - first));
      for (int i = 0; i < table.count; ++i) {
        const AdamRange& range = ranges[first + i];
        table.range[i] = range;
        const int64_t tiles = ceil_div(range.end - range.begin / kPack * kPack, kTile);
        table.first_block[i + 1] = table.first_block[i] + (range.end > range.begin ? tiles : 0);
      }
      launch("adam update", packed ? adam_kernel<T, true> : adam_kernel<T, false>,
             dim3(static_cast<unsigned>(table.first_block[table.count])), dim3(kThreads), 0, stream,
             t, constants, table);
    }
  });
}

void sum_squares(const float* x, int64_t count, double* sum, double* scratch, cudaStream_t stream) {
  const int64_t blocks =
      std::clamp<int64_t>(ceil_div(count, kThreads * kPack), 1, kSumSquaresPartials);
  launch("sum of squares", squares_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0,
         stream, x, count, aligned(x, 16), scratch);
  launch("sum of partial sums", sum_kernel, dim3(1), dim3(kThreads), 0, stream, scratch, blocks,
         sum);
}

void accumulate(Element element, float* dst, const void* src, int64_t count, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    launch("accumulate", accumulate_kernel<T>,
           dim3(static_cast<unsigned>(ceil_div(count, kThreads * kPack))), dim3(kThreads), 0,
           stream, dst, static_cast<const T*>(src), count,
           aligned(dst, 16) && aligned(src, kPack * sizeof(T)));
  });
}

}  // namespace reknit::kernels
