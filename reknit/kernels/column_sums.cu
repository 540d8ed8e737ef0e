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

/// Block (c, r): columns of pack c * 32 + threadIdx.x, rows of chunk r.
template <class T, int kSize>
__global__ void __launch_bounds__(kWarp* kRowGroups)
    chunk_kernel(const T* __restrict__ x, int64_t rows, int64_t width, int64_t chunk,
                 float* __restrict__ partials) {
  __shared__ float scratch[kRowGroups][kWarp];
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x) * kSize;
  const int64_t begin = blockIdx.y * chunk;
  const int64_t end = begin + chunk < rows ? begin + chunk : rows;
  float sum[kSize] = {};
  if (column < width) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kRowGroups) {
      const Pack<T, kSize> pack = load_pack<T, kSize>(x + row * width + column);
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

template <class T>
__global__ void __launch_bounds__(kWarp* kFinalGroups)
    final_kernel(Partials partials, T* __restrict__ out) {
  __shared__ float scratch[kFinalGroups][kWarp];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
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

}  // namespace

void add_partials(Element element, const Partials& partials, void* sum, cudaStream_t stream) {
  if (sum == nullptr || partials.rows == 0) {
    return;
  }
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    launch("sum of partial sums", final_kernel<T>,
           dim3(static_cast<unsigned>(ceil_div(partials.width, kWarp))), dim3(kWarp, kFinalGroups),
           0, stream, partials, static_cast<T*>(sum));
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
