// Dropout on CUDA: a thread draws the words of four elements of a row.
#include "reknit/kernels/dropout_cuda.h"

#include "reknit/kernels/device.cuh"

namespace reknit::kernels {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(DropoutRule rule, DropoutRows rows, int64_t packs, int64_t total) {
  constexpr int64_t kPack = DropoutRule::kPack;
  const int64_t place = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (place >= total) {
    return;
  }
  const int64_t row = place / packs;
  const int64_t pack = place % packs;
  uint32_t words[kPack];
  rule.words(rows.key(row), rows.head(row), static_cast<uint64_t>(pack), words);
  const T* x = static_cast<const T*>(rows.x) + row * rows.width;
  T* y = static_cast<T*>(rows.y) + row * rows.width;
#pragma unroll
  for (int64_t i = 0; i < kPack; ++i) {
    const int64_t column = pack * kPack + i;
    if (column < rows.width) {
      y[column] = from_float<T>(rule.keeps(words[i]) ? to_float(x[column]) * rule.scale : 0.0f);
    }
  }
}

}  // namespace

void drop_rows(Element element, const DropoutRule& rule, const DropoutRows& rows,
               cudaStream_t stream) {
  const int64_t packs = ceil_div(rows.width, DropoutRule::kPack);
  const int64_t total = rows.heads * rows.rows * packs;
  with_element(element, [&](auto zero) {
    launch("dropout", rows_kernel<decltype(zero)>,
           dim3(static_cast<unsigned>(ceil_div(total, kThreads))), dim3(kThreads), 0, stream, rule,
           rows, packs, total);
  });
}

}  // namespace reknit::kernels
