// Sums over rows in two stages: chunks of rows, then the chunks' sums.
#include "reknit/kernels/column_sums.h"

#include "reknit/kernels/device.cuh"

#include <algorithm>

namespace reknit::kernels {
namespace {

constexpr int kRowGroups = 8;
constexpr int kFinalGroups = 32;
constexpr int64_t kTargetBlocks = 1056;  // some eight for each multiprocessor
constexpr int64_t kMinRows = 32;         // of a chunk

/// Sums `value` over threadIdx.y in order; the threads of row 0 get the sum.
template <int kGroups>
__device__ float sum_over_y(float value, float (*scratch)[kWarp]) {
  scratch[threadIdx.y][threadIdx.x] = value;
  __syncthreads();
  float sum = 0;
  if (threadIdx.y == 0) {
    for (int y = 0; y < kGroups; ++y) {
      sum += scratch[y][threadIdx.x];
    }
  }
  __syncthreads();
  return sum;
}

/// Block (c, r): the sums of what `value_at` gives for places in the matrix, over columns of pack
/// c * 32 + threadIdx.x and rows of chunk r.
template <class T, int kSize, class ValueAt>
__device__ __forceinline__ void sum_chunk(int64_t rows, int64_t width, int64_t chunk,
                                          float* __restrict__ partials, const ValueAt& value_at) {
  __shared__ float scratch[kRowGroups][kWarp];
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x) * kSize;
  const int64_t begin = blockIdx.y * chunk;
  const int64_t end = begin + chunk < rows ? begin + chunk : rows;
  float sum[kSize] = {};
  if (column < width) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kRowGroups) {
      const Pack<T, kSize> pack = value_at(row * width + column);
      for (int i = 0; i < kSize; ++i) {
        sum[i] += to_float(pack.at[i]);
      }
    }
  }
  for (int i = 0; i < kSize; ++i) {
    const float total = sum_over_y<kRowGroups>(sum[i], scratch);
    if (threadIdx.y == 0 && column < width) {
      partials[blockIdx.y * width + column + i] = total;
    }
  }
}

template <class T, int kSize>
__global__ void __launch_bounds__(kWarp* kRowGroups)
    chunk_kernel(const T* __restrict__ x, int64_t rows, int64_t width, int64_t chunk,
                 float* __restrict__ partials) {
  sum_chunk<T, kSize>(rows, width, chunk, partials,
                      [&](int64_t at) { return load_pack<T, kSize>(x + at); });
}

/// Slope of the curve at x.
template <Bend kBend>
__device__ float slope(float x) {
  if constexpr (kBend == Bend::kRelu) {
    return x > 0 ? 1.0f : 0.0f;
  } else if constexpr (kBend == Bend::kGelu) {
    constexpr float kRootHalf = 0.70710678118654752f;
    constexpr float kDensity = 0.39894228040143268f;  // of the normal distribution at 0
    return 0.5f * (1.0f + erff(x * kRootHalf)) + x * kDensity * expf(-0.5f * x * x);
  } else if constexpr (kBend == Bend::kGeluTanh) {
    constexpr float kRootTwoOverPi = 0.79788456080286536f;
    constexpr float kCubic = 0.044715f;
    const float t = tanhf(kRootTwoOverPi * (x + kCubic * x * x * x));
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * kRootTwoOverPi * (1.0f + 3.0f * kCubic * x * x);
  } else {
    const float s = 1.0f / (1.0f + expf(-x));
    return s * (1.0f + x * (1.0f - s));
  }
}

/// chunk_kernel over dy times the slopes at x, which is left in dy.
template <class T, int kSize, Bend kBend>
__global__ void __launch_bounds__(kWarp* kRowGroups)
    bend_kernel(const T* __restrict__ x, T* __restrict__ dy, int64_t rows, int64_t width,
                int64_t chunk, float* __restrict__ partials) {
  sum_chunk<T, kSize>(rows, width, chunk, partials, [&](int64_t at) {
    const Pack<T, kSize> in = load_pack<T, kSize>(x + at);
    Pack<T, kSize> pack = load_pack<T, kSize>(dy + at);
    for (int i = 0; i < kSize; ++i) {
      pack.at[i] = from_float<T>(to_float(pack.at[i]) * slope<kBend>(to_float(in.at[i])));
    }
    store_pack<T, kSize>(dy + at, pack);
    return pack;
  });
}

/// blockIdx.y: 0 for `out`, 1 for `next`, whose values follow.
template <class T>
__global__ void __launch_bounds__(kWarp* kFinalGroups)
    final_kernel(Partials partials, T* __restrict__ out, T* __restrict__ next) {
  __shared__ float scratch[kFinalGroups][kWarp];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  if (blockIdx.y == 1) {
    partials.first += partials.width;
    out = next;
  }
  if (out == nullptr) {
    return;
  }
  float sum = 0;
  if (column < partials.width) {
    for (int64_t row = threadIdx.y; row < partials.rows; row += kFinalGroups) {
      sum += partials.first[row * partials.stride + column];
    }
  }
  sum = sum_over_y<kFinalGroups>(sum, scratch);
  if (threadIdx.y == 0 && column < partials.width) {
    out[column] = from_float<T>(to_float(out[column]) + sum);
  }
}

int64_t rows_of_chunk(int64_t rows, int64_t width) {
  const int64_t blocks_across = ceil_div(width, kWarp * 8);
  const int64_t chunks = std::max<int64_t>(1, kTargetBlocks / blocks_across);
  return std::max(kMinRows, ceil_div(rows, chunks));
}

template <class T, int kSize>
void launch_chunks(const void* x, int64_t rows, int64_t width, float* scratch,
                   cudaStream_t stream) {
  const int64_t chunk = rows_of_chunk(rows, width);
  launch("column sums", chunk_kernel<T, kSize>,
         dim3(static_cast<unsigned>(ceil_div(width, kWarp * kSize)),
              static_cast<unsigned>(ceil_div(rows, chunk))),
         dim3(kWarp, kRowGroups), 0, stream, static_cast<const T*>(x), rows, width, chunk, scratch);
}

template <class T, int kSize, Bend kBend>
void launch_bend(const BendBackward& a, cudaStream_t stream) {
  const int64_t chunk = rows_of_chunk(a.rows, a.width);
  launch("activation backward", bend_kernel<T, kSize, kBend>,
         dim3(static_cast<unsigned>(ceil_div(a.width, kWarp * kSize)),
              static_cast<unsigned>(ceil_div(a.rows, chunk))),
         dim3(kWarp, kRowGroups), 0, stream, static_cast<const T*>(a.x), static_cast<T*>(a.dy),
         a.rows, a.width, chunk, a.scratch);
}

template <class T, int kSize>
void launch_bend(const BendBackward& a, cudaStream_t stream) {
  switch (a.bend) {
    case Bend::kRelu:
      return launch_bend<T, kSize, Bend::kRelu>(a, stream);
    case Bend::kGelu:
      return launch_bend<T, kSize, Bend::kGelu>(a, stream);
    case Bend::kGeluTanh:
      return launch_bend<T, kSize, Bend::kGeluTanh>(a, stream);
    case Bend::kSilu:
      return launch_bend<T, kSize, Bend::kSilu>(a, stream);
  }
}

}  // namespace

void bend_backward(Element element, const BendBackward& a, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    if (a.width % kPackSize<T> == 0 && aligned(a.x, 16) && aligned(a.dy, 16)) {
      launch_bend<T, kPackSize<T>>(a, stream);
    } else {
      launch_bend<T, 1>(a, stream);
    }
  });
  add_partials(element, {a.scratch, column_sums_partials(a.rows, a.width), a.width, a.width}, a.sum,
               stream);
}

void add_partials(Element element, const Partials& partials, void* sum, cudaStream_t stream,
                  void* next) {
  if ((sum == nullptr && next == nullptr) || partials.rows == 0) {
    return;
  }
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    launch("sum of partial sums", final_kernel<T>,
           dim3(static_cast<unsigned>(ceil_div(partials.width, kWarp)), next == nullptr ? 1 : 2),
           dim3(kWarp, kFinalGroups), 0, stream, partials, static_cast<T*>(sum),
           static_cast<T*>(next));
  });
}

int64_t column_sums_partials(int64_t rows, int64_t width) {
  return ceil_div(rows, rows_of_chunk(rows, width));
}

void column_sums(Element element, const void* x, int64_t rows, int64_t width, void* sum,
                 float* scratch, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    if (width % kPackSize<T> == 0 && aligned(x, 16)) {
      launch_chunks<T, kPackSize<T>>(x, rows, width, scratch, stream);
    } else {
      launch_chunks<T, 1>(x, rows, width, scratch, stream);
    }
  });
  add_partials(element, {scratch, column_sums_partials(rows, width), width, width}, sum, stream);
}

}  // namespace reknit::kernels
