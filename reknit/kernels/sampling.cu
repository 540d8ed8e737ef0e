// Drawing tokens. With top-k or top-p one block a row: their sets are found by searching
// for the bits of their smallest logit, without sorting. Sums have a fixed order.
#include "reknit/kernels/sampling.h"

#include "reknit/kernels/sampling_row.cuh"

namespace reknit::kernels {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;

/// The columns above `order`, and those equal to it up to column `last`.
struct Kept {
  uint32_t order = 0;
  int64_t last = INT64_MAX;

  __device__ bool has(uint32_t o, int64_t i) const {
    return o > order || (o == order && i <= last);
  }
};

/// Each warp owns a run of columns; its lanes take them in turn.
struct Run {
  int64_t begin, end;
};
__device__ Run run_of_warp(int64_t columns) {
  const int64_t length = (columns + kWarps - 1) / kWarps;
  const int64_t begin = threadIdx.x / kWarp * length;
  return {begin, begin + length < columns ? begin + length : columns};
}

__device__ int64_t largest(const Row& row, Scratch& s) {
  uint64_t best = 0;
  for (int64_t i = threadIdx.x; i < row.columns; i += kThreads) {
    const uint64_t word = (static_cast<uint64_t>(order_of(row.at(i))) << 32) |
                          (0xffffffffu - static_cast<uint32_t>(i));
    best = word > best ? word : best;
  }
  best = block_reduce(best, uint64_t{0}, s.words, Max{});
  return 0xffffffffu - static_cast<uint32_t>(best);
}

__device__ float log_sum_exp(const float* logits, int64_t columns, float top, Scratch& s) {
  float total = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    total += expf(logits[i] - top);
  }
  return top + logf(block_reduce(total, 0.0f, s.floats, Sum{}));
}

/// Sums of `measure` over the kept columns whose order is at least bound[0, 1, 2].
template <class Measure>
__device__ void sums_above(const Row& row, const Kept& kept, const uint32_t (&bound)[3],
                           Measure measure, double (&sum)[3], Scratch& s) {
  sum[0] = sum[1] = sum[2] = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < row.columns; i += kThreads) {
    const float x = row.at(i);
    const uint32_t order = order_of(x);
    if (order >= bound[0] && kept.has(order, i)) {
      const double value = measure(x);
      sum[0] += value;
      sum[1] += order >= bound[1] ? value : 0.0;
      sum[2] += order >= bound[2] ? value : 0.0;
    }
  }
  for (double& part : sum) {
    part = block_reduce(part, 0.0, s.sums, Sum{});
  }
}

/// The largest order o such that the kept columns of at least o measure `goal` or more:
/// two bits at a time, from the highest.
template <class Measure>
__device__ uint32_t find_order(const Row& row, const Kept& kept, double goal, Measure measure,
                               Scratch& s) {
  uint32_t found = 0;
  for (int shift = 30; shift >= 0; shift -= 2) {
    const uint32_t bound[3] = {found | (1u << shift), found | (2u << shift), found | (3u << shift)};
    double sum[3];
    sums_above(row, kept, bound, measure, sum, s);
    found = sum[2] >= goal   ? bound[2]
            : sum[1] >= goal ? bound[1]
            : sum[0] >= goal ? bound[0]
                             : found;
  }
  return found;
}

template <class Measure>
__device__ double sum_over(const Row& row, const Kept& kept, uint32_t at_least, Measure measure,
                           Scratch& s) {
  const uint32_t bound[3] = {at_least, 0xffffffffu, 0xffffffffu};
  double sum[3];
  sums_above(row, kept, bound, measure, sum, s);
  return sum[0];
}

/// The column of the n-th (1: first) of those whose order is `order`; the last column
/// of all where there are fewer.
__device__ int64_t nth_equal(const Row& row, uint32_t order, int64_t n, Scratch& s) {
  const Run run = run_of_warp(row.columns);
  const int lane = threadIdx.x % kWarp;
  int64_t mine = 0;
  for (int64_t base = run.begin; base < run.end; base += kWarp) {
    const bool equal = base + lane < run.end && order_of(row.at(base + lane)) == order;
    mine += __popc(__ballot_sync(kAllLanes, equal));
  }
  if (lane == 0) {
    s.words[threadIdx.x / kWarp] = static_cast<uint64_t>(mine);
  }
  if (threadIdx.x == 0) {
    s.result = row.columns - 1;
  }
  __syncthreads();
  int64_t before = 0;
  for (int warp = 0; warp < static_cast<int>(threadIdx.x) / kWarp; ++warp) {
    before += static_cast<int64_t>(s.words[warp]);
  }
  if (before < n && n <= before + mine) {
    for (int64_t base = run.begin; base < run.end; base += kWarp) {
      const bool equal = base + lane < run.end && order_of(row.at(base + lane)) == order;
      const unsigned lanes = __ballot_sync(kAllLanes, equal);
      const int rank = __popc(lanes & ((1u << lane) - 1)) + 1;
      if (equal && before + rank == n) {
        s.result = base + lane;
      }
      before += __popc(lanes);
    }
  }
  __syncthreads();
  const int64_t result = s.result;
  __syncthreads();
  return result;
}

__device__ Kept filter(const Row& row, const Sampling& a, Scratch& s) {
  Kept kept;
  const auto one = [](float) { return 1.0; };
  const auto weight = [&row](float x) { return row.weight(x); };
  if (a.top_k > 0 && a.top_k < row.columns) {
    const auto goal = static_cast<double>(a.top_k);
    const uint32_t order = find_order(row, {}, goal, one, s);
    const double above = sum_over(row, {}, order + 1, one, s);
    kept.last = nth_equal(row, order, static_cast<int64_t>(goal - above), s);
    kept.order = order;
  }
  if (a.top_p < 1.0) {
    const double goal = a.top_p * sum_over(row, kept, 0, weight, s);
    const uint32_t order = find_order(row, kept, goal, weight, s);
    const double above = sum_over(row, kept, order + 1, weight, s);
    const double needed = ceil((goal - above) / row.weight(value_of(order)));
    const int64_t count = needed >= 1.0 && needed <= static_cast<double>(row.columns)
                              ? static_cast<int64_t>(needed)
                              : 1;
    const int64_t last = nth_equal(row, order, count, s);
    kept.last = order == kept.order && kept.last < last ? kept.last : last;
    kept.order = order;
  }
  return kept;
}

/// The first kept column at which the sum of weights exceeds the share `u` of all.
__device__ int64_t draw(const Row& row, const Kept& kept, double u, Scratch& s) {
  const Run run = run_of_warp(row.columns);
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const auto weight_at = [&](int64_t i) {
    const float x = i < run.end ? row.at(i) : -INFINITY;
    return i < run.end && kept.has(order_of(x), i) ? row.weight(x) : 0.0;
  };
  double mine = 0;
  for (int64_t i = run.begin + lane; i < run.end; i += kWarp) {
    mine += weight_at(i);
  }
  mine = warp_reduce(mine, Sum{});
  if (lane == 0) {
    s.sums[warp] = mine;
  }
  if (threadIdx.x == 0) {
    s.result = 0;
  }
  __syncthreads();
  double total = 0;
  for (int w = 0; w < kWarps; ++w) {
    total += s.sums[w];
  }
  // The warp in which the share is reached; by rounding it may be past the last one.
  int winner = 0;
  double before = 0;
  double reached = 0;
  for (int w = 0; w < kWarps && reached <= u * total; ++w) {
    if (s.sums[w] > 0) {
      winner = w;
      before = reached;
    }
    reached += s.sums[w];
  }
  if (warp == winner) {
    bool found = false;
    for (int64_t base = run.begin; base < run.end && !found; base += kWarp) {
      const double weight = weight_at(base + lane);
      const double sum = before + inclusive_scan(weight);
      const unsigned positive = __ballot_sync(kAllLanes, weight > 0);
      const unsigned over = __ballot_sync(kAllLanes, weight > 0 && sum > u * total);
      found = over != 0;
      if (lane == 0 && positive != 0) {
        s.result = base + (found ? __ffs(over) - 1 : kWarp - 1 - __clz(positive));
      }
      before = __shfl_sync(kAllLanes, sum, kWarp - 1);
    }
  }
  __syncthreads();
  return s.result;
}

__global__ void __launch_bounds__(kThreads) sample_kernel(Sampling a) {
  __shared__ Scratch s;
  let_next_start();
  wait_for_kernels_ahead();
  const int64_t b = blockIdx.x;
  Row row{a.logits + b * a.stride, a.columns, -1, 0.0f, 0.0f};
  if (a.eos >= 0 && a.eos < a.columns && a.forbidden_until[b] > a.positions[b]) {
    row.forbidden = a.eos;
  }
  int64_t token = largest(row, s);
  row.top = row.at(token);
  const float top = row.forbidden < 0 ? row.top : fmaxf(row.top, row.logits[row.forbidden]);
  const float lse = log_sum_exp(row.logits, a.columns, top, s);
  if (a.temperature > 0) {
    row.rate = 1.0f / a.temperature;
    const double u =
        Philox{static_cast<uint64_t>(a.keys[b])}.uniform(static_cast<uint64_t>(a.positions[b]), 0);
    token = isfinite(lse) ? draw(row, filter(row, a, s), u, s) : 0;
  }
  if (threadIdx.x == 0) {
    a.tokens[b] = token;
    a.logp[b] = row.logits[token] - lse;
  }
}

bool is_filtered(const Sampling& a) {
  return a.temperature > 0 && (a.top_k > 0 || a.top_p < 1.0);
}

}  // namespace

int64_t sampling_scratch(const Sampling& a) {
  return is_filtered(a) ? 0 : sampling_parts_scratch(a);
}

void sample(const Sampling& a, cudaStream_t stream) {
  if (is_filtered(a)) {
    launch_overlapping("sampling", sample_kernel, dim3(static_cast<unsigned>(a.rows)),
                       dim3(kThreads), 0, stream, a);
  } else {
    sample_by_parts(a, stream);
  }
}

}  // namespace reknit::kernels
