// Drawing tokens without top-k and top-p: a block for each part of a row, then one a row
// that looks into one part only; and what a decode step does with them.
#include "reknit/kernels/sampling_row.cuh"

namespace reknit::kernels {
namespace {

constexpr int kPartThreads = 256;
constexpr int kPartEach = 16;
constexpr int64_t kPart = kPartThreads * kPartEach;  // columns

/// What a part of a row comes to.
struct Part {
  uint64_t best;  // order and column of the largest logit that can be drawn
  double weight;  // sum over those of exp((x - value of best) * rate)
  float top;      // of all
  float total;    // sum over all of exp(x - top)
};

__device__ uint64_t word_of(uint32_t order, int64_t column) {
  return (static_cast<uint64_t>(order) << 32) | (0xffffffffu - static_cast<uint32_t>(column));
}
__device__ int64_t column_of(uint64_t word) {
  return 0xffffffffu - static_cast<uint32_t>(word);
}

__device__ Row row_of(const Sampling& a, int64_t b) {
  Row row{a.logits + b * a.stride, a.columns, -1, 0.0f,
          a.temperature > 0 ? 1.0f / a.temperature : 0.0f};
  if (a.eos >= 0 && a.eos < a.columns && a.forbidden_until[b] > a.positions[b]) {
    row.forbidden = a.eos;
  }
  return row;
}

/// Block (part, row).
__global__ void __launch_bounds__(kPartThreads) part_kernel(Sampling a, Part* parts) {
  __shared__ Scratch s;
  let_next_start();
  wait_for_kernels_ahead();
  Row row = row_of(a, blockIdx.y);
  const int64_t first = blockIdx.x * kPart;
  const int count = static_cast<int>(row.columns - first < kPart ? row.columns - first : kPart);
  const int forbidden = row.forbidden >= first && row.forbidden < first + kPart
                            ? static_cast<int>(row.forbidden - first)
                            : -1;
  float x[kPartEach];
#pragma unroll
  for (int k = 0; k < kPartEach; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * kPartThreads;
    x[k] = i < count ? row.logits[first + i] : -INFINITY;
  }
  float top = -INFINITY;
  uint32_t order = 0;
  int place = 0;
#pragma unroll
  for (int k = 0; k < kPartEach; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * kPartThreads;
    top = fmaxf(top, x[k]);
    const uint32_t mine = i < count ? order_of(i == forbidden ? -INFINITY : x[k]) : 0;
    place = mine > order ? i : place;
    order = mine > order ? mine : order;
  }
  const uint64_t best =
      block_reduce(order == 0 ? 0 : word_of(order, first + place), uint64_t{0}, s.words, Max{});
  top = block_reduce(top, -INFINITY, s.floats, Max{});
  float total = 0;
#pragma unroll
  for (int k = 0; k < kPartEach; ++k) {
    total += isnan(x[k]) ? NAN : top == -INFINITY ? 0.0f : expf(x[k] - top);
  }
  total = block_reduce(total, 0.0f, s.floats, Sum{});
  double weight = 0;
  row.top = value_of(static_cast<uint32_t>(best >> 32));
  if (a.temperature > 0 && row.top != -INFINITY) {
#pragma unroll
    for (int k = 0; k < kPartEach; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kPartThreads;
      weight += i < count && i != forbidden ? row.weight(x[k]) : 0.0;
    }
    weight = block_reduce(weight, 0.0, s.sums, Sum{});
  }
  if (threadIdx.x == 0) {
    parts[blockIdx.y * gridDim.x + blockIdx.x] = {best, weight, top, total};
  }
}

/// Where a sum of weights passes a goal.
struct Passed {
  int64_t index;  // of the weight that passes it; by rounding the last positive one; -1: none
  double before;  // sum of the weights before that
  double total;   // of all
};

/// Weights 0 .. count - 1, `weight_of(i)` each, in order; `goal_of(total)` is what the sum is
/// to exceed. The whole block.
template <class Weight, class Goal>
__device__ Passed pass(int64_t count, Weight weight_of, Goal goal_of, Scratch& s) {
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t each = (count + kPartThreads - 1) / kPartThreads;
  const int64_t first = threadIdx.x * each;
  const int64_t end = first + each < count ? first + each : count;
  double mine = 0;
  int64_t last = -1;  // with a weight
  for (int64_t i = first; i < end; ++i) {
    const double weight = weight_of(i);
    mine += weight;
    last = weight > 0 ? i : last;
  }
  const double within = inclusive_scan(mine);
  if (lane == kWarp - 1) {
    s.sums[warp] = within;
  }
  __syncthreads();
  double before = 0;
  double total = 0;
  for (int w = 0; w < kPartThreads / kWarp; ++w) {
    before += w < warp ? s.sums[w] : 0.0;
    total += s.sums[w];
  }
  before += __shfl_up_sync(kAllLanes, within, 1) * (lane > 0 ? 1.0 : 0.0);
  const double goal = goal_of(total);
  if (threadIdx.x == 0) {
    s.result = -1;
  }
  const auto least = [](int64_t a, int64_t b) { return a < b ? a : b; };
  auto* const words = reinterpret_cast<int64_t*>(s.words);
  const int64_t found =
      block_reduce(before + mine > goal && last >= 0 ? int64_t{threadIdx.x} : int64_t{kPartThreads},
                   int64_t{kPartThreads}, words, least);
  last = block_reduce(last, int64_t{-1}, words, Max{});
  if (found == threadIdx.x || (found == kPartThreads && first <= last && last < end)) {
    Passed passed{last, before, total};
    for (int64_t i = first; i < end; ++i) {
      const double weight = weight_of(i);
      if (weight > 0) {
        passed.index = i;
        passed.before = before;
      }
      before += weight;
      if (weight > 0 && before > goal) {
        break;
      }
    }
    s.result = passed.index;
    s.sums[0] = passed.before;
  }
  __syncthreads();
  const Passed passed{s.result, s.sums[0], total};
  __syncthreads();
  return passed;
}

/// The column that u stands for; a row whose parts have weight.
__device__ int64_t draw_by_parts(Row& row, const Part* parts, int64_t num_parts, double u,
                                 Scratch& s) {
  const float overall = row.top;
  const auto scale = [&](int64_t i) {
    return static_cast<double>(
        expf((value_of(static_cast<uint32_t>(parts[i].best >> 32)) - overall) * row.rate));
  };
  const auto weight_of_part = [&](int64_t i) {
    return parts[i].weight > 0 ? parts[i].weight * scale(i) : 0.0;
  };
  const Passed part = pass(
      num_parts, weight_of_part, [u](double total) { return u * total; }, s);
  if (part.index < 0) {
    return 0;
  }
  const int64_t first = part.index * kPart;
  const double goal = (u * part.total - part.before) / scale(part.index);
  row.top = value_of(static_cast<uint32_t>(parts[part.index].best >> 32));
  const int64_t count = row.columns - first < kPart ? row.columns - first : kPart;
  const auto weight_of = [&](int64_t i) { return row.weight(row.at(first + i)); };
  return first + pass(
                     count, weight_of, [goal](double) { return goal; }, s)
                     .index;
}

/// Block row: its parts into a token.
__global__ void __launch_bounds__(kPartThreads)
    draw_kernel(Sampling a, const Part* all, int64_t num_parts) {
  __shared__ Scratch s;
  let_next_start();
  wait_for_kernels_ahead();
  const int64_t b = blockIdx.x;
  const Part* parts = all + b * num_parts;
  Row row = row_of(a, b);
  uint64_t best = 0;
  float top = -INFINITY;
  for (int64_t i = threadIdx.x; i < num_parts; i += kPartThreads) {
    best = parts[i].best > best ? parts[i].best : best;
    top = fmaxf(top, parts[i].top);
  }
  best = block_reduce(best, uint64_t{0}, s.words, Max{});
  top = block_reduce(top, -INFINITY, s.floats, Max{});
  float total = 0;
  for (int64_t i = threadIdx.x; i < num_parts; i += kPartThreads) {
    // A part without a number has no top, and must not pass for one without weight.
    total += parts[i].top == -INFINITY ? parts[i].total : parts[i].total * expf(parts[i].top - top);
  }
  const float lse = top + logf(block_reduce(total, 0.0f, s.floats, Sum{}));
  int64_t token = column_of(best);
  row.top = row.at(token);
  if (a.temperature > 0) {
    const double u =
        Philox{static_cast<uint64_t>(a.keys[b])}.uniform(static_cast<uint64_t>(a.positions[b]), 0);
    token = isfinite(lse) ? draw_by_parts(row, parts, num_parts, u, s) : 0;
  }
  if (threadIdx.x == 0) {
    a.tokens[b] = token;
    a.logp[b] = row.logits[token] - lse;
  }
}

__global__ void keep_kernel(KeepDrawn a) {
  let_next_start();
  wait_for_kernels_ahead();
  const int64_t b = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (b >= a.rows) {
    return;
  }
  const int64_t place = a.positions[b];
  if (place < a.most) {
    a.tokens[place * a.rows + b] = a.drawn[b];
    a.logp[place * a.rows + b] = a.drawn_logp[b];
  }
  a.inputs[b] = a.drawn[b];
  a.lengths[b] += 1;
  a.positions[b] = place + 1;
}

int64_t num_parts(const Sampling& a) {
  return ceil_div(a.columns, kPart);
}

}  // namespace

int64_t sampling_parts_scratch(const Sampling& a) {
  return a.rows * num_parts(a) * static_cast<int64_t>(sizeof(Part));
}

void sample_by_parts(const Sampling& a, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(a.rows);
  auto* const parts = static_cast<Part*>(a.scratch);
  launch_overlapping("parts of sampling", part_kernel,
                     dim3(static_cast<unsigned>(num_parts(a)), rows), dim3(kPartThreads), 0, stream,
                     a, parts);
  launch_overlapping("sampling", draw_kernel, dim3(rows), dim3(kPartThreads), 0, stream, a, parts,
                     num_parts(a));
}

void keep_drawn(const KeepDrawn& a, cudaStream_t stream) {
  constexpr unsigned kRows = 64;
  launch_overlapping("keeping of drawn tokens", keep_kernel,
                     dim3(static_cast<unsigned>(ceil_div(a.rows, kRows))), dim3(kRows), 0, stream,
                     a);
}

}  // namespace reknit::kernels
