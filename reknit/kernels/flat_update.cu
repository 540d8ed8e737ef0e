// Optimizer updates over ranges of flat buffers, sums of squares, accumulation.
#include "reknit/kernels/flat_update.h"

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
  RuleRange range[kMaxRanges];
};

/// What the update kernel writes and reads.
template <class T>
struct Flat {
  RuleArrays arrays;
  T* weight;
  const float* scales;
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

/// kSize elements from i on: one element, or one aligned pack.
template <class Rule, class T, int kSize>
__device__ void step_pack(const Flat<T>& flat, int64_t i, float scale, const RuleRange& range,
                          const RuleConstants& c) {
  const RuleArrays& a = flat.arrays;
  auto master = load_pack<float, kSize>(a.master + i);
  auto grad = load_pack<float, kSize>(a.grad + i);
  Pack<float, kSize> state[2];
#pragma unroll
  for (int s = 0; s < Rule::kStates; ++s) {
    state[s] = load_pack<float, kSize>(a.state[s] + i);
  }
  Pack<T, kSize> rounded;
#pragma unroll
  for (int e = 0; e < kSize; ++e) {
    Cell x{master.at[e], {0.0f, 0.0f}, grad.at[e] * scale};
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s) {
      x.state[s] = state[s].at[e];
    }
    Rule::step(x, c, range);
    master.at[e] = x.master;
    grad.at[e] = x.grad;
    rounded.at[e] = from_float<T>(x.master);
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s) {
      state[s].at[e] = x.state[s];
    }
  }
#pragma unroll
  for (int s = 0; s < Rule::kStates; ++s) {
    store_pack<float, kSize>(a.state[s] + i, state[s]);
  }
  if constexpr (Rule::kDirection) {
    store_pack<float, kSize>(a.grad + i, grad);
  } else {
    store_pack<float, kSize>(a.master + i, master);
    if (flat.weight != nullptr) {
      store_pack<T, kSize>(flat.weight + i, rounded);
    }
  }
}

/// Tiles start at multiples of the pack, so that packs stay aligned; the elements of a
/// pack outside the range are left alone.
template <class Rule, class T, bool kPacked>
__global__ void __launch_bounds__(kThreads)
    update_kernel(Flat<T> flat, RuleConstants c, RangeTable table) {
  const int r = find_range(table, blockIdx.x);
  const RuleRange range = table.range[r];
  const float scale = flat.scales[range.scale];
  const int64_t tile = range.begin / kPack * kPack + (blockIdx.x - table.first_block[r]) * kTile;
#pragma unroll
  for (int64_t part = 0; part < kTile; part += kThreads * kPack) {
    const int64_t i = tile + part + threadIdx.x * kPack;
    if (kPacked && i >= range.begin && i + kPack <= range.end) {
      step_pack<Rule, T, kPack>(flat, i, scale, range, c);
    } else {
      for (int64_t e = i; e < i + kPack; ++e) {
        if (e >= range.begin && e < range.end) {
          step_pack<Rule, T, 1>(flat, e, scale, range, c);
        }
      }
    }
  }
}

/// The parts of one launch, which travel as its parameters.
struct PartTable {
  Part part[kMaxParts];
};

/// Row y of the grid sums part y; its blocks leave kSumSquaresPartials partial sums.
__global__ void __launch_bounds__(kThreads)
    squares_kernel(const float* __restrict__ all, PartTable table, double* __restrict__ partials) {
  __shared__ double scratch[kWarp];
  const Part part = table.part[blockIdx.y];
  const float* x = all + part.begin;
  const int64_t count = part.end - part.begin;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const bool packed = reinterpret_cast<uintptr_t>(x) % (sizeof(float) * kPack) == 0;
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
    partials[blockIdx.y * gridDim.x + blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    sum_kernel(const double* __restrict__ partials, int64_t count, double* __restrict__ sums) {
  __shared__ double scratch[kWarp];
  const double* mine = partials + blockIdx.x * count;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    sum += mine[i];
  }
  sum = block_reduce(sum, 0.0, scratch, Sum{});
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
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

void flat_update(UpdateRule rule, const RuleArrays& a, Element element, void* weight,
                 const float* scales, const RuleConstants& constants,
                 const std::vector<RuleRange>& ranges, cudaStream_t stream) {
  const auto update = [&](auto which, auto zero) {
    using Rule = decltype(which);
    using T = decltype(zero);
    const Flat<T> flat{a, static_cast<T*>(weight), scales};
    const bool packed = aligned(a.master, 16) && aligned(a.state[0], 16) &&
                        aligned(a.state[1], 16) && aligned(a.grad, 16) &&
                        aligned(weight, kPack * sizeof(T));
    for (size_t first = 0; first < ranges.size(); first += kMaxRanges) {
      RangeTable table{};
      table.count = static_cast<int32_t>(std::min<size_t>(kMaxRanges, ranges.size() - first));
      for (int i = 0; i < table.count; ++i) {
        const RuleRange& range = ranges[first + i];
        table.range[i] = range;
        const int64_t tiles = ceil_div(range.end - range.begin / kPack * kPack, kTile);
        table.first_block[i + 1] = table.first_block[i] + (range.end > range.begin ? tiles : 0);
      }
      launch("optimizer update",
             packed ? update_kernel<Rule, T, true> : update_kernel<Rule, T, false>,
             dim3(static_cast<unsigned>(table.first_block[table.count])), dim3(kThreads), 0, stream,
             flat, constants, table);
    }
  };
  with_rule(rule, [&](auto which) {
    if constexpr (decltype(which)::kDirection) {
      update(which, float{});
    } else {
      with_element(element, [&](auto zero) { update(which, zero); });
    }
  });
}

void sum_squares(const float* x, const std::vector<Part>& parts, double* sums, double* scratch,
                 cudaStream_t stream) {
  for (size_t first = 0; first < parts.size(); first += kMaxParts) {
    const auto count = static_cast<unsigned>(std::min<size_t>(kMaxParts, parts.size() - first));
    PartTable table{};
    int64_t longest = 0;
    for (unsigned i = 0; i < count; ++i) {
      table.part[i] = parts[first + i];
      longest = std::max(longest, table.part[i].end - table.part[i].begin);
    }
    const int64_t blocks =
        std::clamp<int64_t>(ceil_div(longest, kThreads * kPack), 1, kSumSquaresPartials);
    launch("sum of squares", squares_kernel, dim3(static_cast<unsigned>(blocks), count),
           dim3(kThreads), 0, stream, x, table, scratch);
    launch("sum of partial sums", sum_kernel, dim3(count), dim3(kThreads), 0, stream, scratch,
           blocks, sums + first);
  }
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
