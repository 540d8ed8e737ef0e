// Bias and residual added to a product: a block for some columns of a few rows.
#include "reknit/kernels/residual.h"

#include "reknit/kernels/device.cuh"

namespace reknit::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 4;  // of a block: their loads are under way together

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads) residual_kernel(AddResidual a) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kSize;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  if (column >= a.width) {
    return;
  }
  Pack<T, kSize> bias{};
  if (a.bias != nullptr) {
    bias = load_pack<T, kSize>(static_cast<const T*>(a.bias) + column);
  }
  Pack<T, kSize> sum[kRows], added[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r < a.rows) {
      const int64_t at = (first + r) * a.width + column;
      sum[r] = load_pack<T, kSize>(static_cast<const T*>(a.y) + at);
      added[r] = load_pack<T, kSize>(static_cast<const T*>(a.residual) + at);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r < a.rows) {
      for (int i = 0; i < kSize; ++i) {
        sum[r].at[i] =
            from_float<T>(to_float(sum[r].at[i]) + to_float(bias.at[i]) + to_float(added[r].at[i]));
      }
      store_pack<T, kSize>(static_cast<T*>(a.y) + (first + r) * a.width + column, sum[r]);
    }
  }
}

template <class T, int kSize>
void launch_residual(const AddResidual& a, cudaStream_t stream) {
  launch("bias and residual", residual_kernel<T, kSize>,
         dim3(static_cast<unsigned>(ceil_div(a.rows, kRows)),
              static_cast<unsigned>(ceil_div(a.width, int64_t{kThreads} * kSize))),
         dim3(kThreads), 0, stream, a);
}

}  // namespace

void add_residual(Element element, const AddResidual& a, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    if (a.width % kPackSize<T> == 0 && aligned(a.y, 16) && aligned(a.bias, 16) &&
        aligned(a.residual, 16)) {
      launch_residual<T, kPackSize<T>>(a, stream);
    } else {
      launch_residual<T, 1>(a, stream);
    }
  });
}

}  // namespace reknit::kernels
