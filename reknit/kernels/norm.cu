// Layer norm forward and backward: a block per row, the row in registers.
#include "reknit/kernels/norm.h"

#include "reknit/kernels/column_sums.h"
#include "reknit/kernels/device.cuh"

#include <algorithm>

namespace reknit::kernels {
namespace {

constexpr int kMaxThreads = 512;
constexpr int64_t kMaxPartials = 512;

/// A thread's share of a row: packs threadIdx.x, threadIdx.x + blockDim.x, ...
template <class T, int kSize, int kPacks>
struct Share {
  Pack<T, kSize> pack[kPacks];

  __device__ static int64_t place(int k) {
    return (threadIdx.x + static_cast<int64_t>(k) * blockDim.x) * kSize;
  }
  __device__ void load(const T* row, int64_t width) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (place(k) < width) {
        pack[k] = load_pack<T, kSize>(row + place(k));
      }
    }
  }
  /// `value` everywhere where there is no row.
  __device__ void load_or(const T* row, int64_t width, float value) {
    if (row != nullptr) {
      load(row, width);
      return;
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      for (int i = 0; i < kSize; ++i) {
        pack[k].at[i] = from_float<T>(value);
      }
    }
  }
};

template <class T, int kSize, int kPacks>
__global__ void __launch_bounds__(kMaxThreads)
    forward_kernel(int64_t width, float eps, const T* x, const T* weight, const T* bias, T* y,
                   float* mean_out, float* rstd_out) {
  using Row = Share<T, kSize, kPacks>;
  __shared__ float scratch[kWarp];
  const int64_t row = blockIdx.x;
  let_next_start();
  Row scale, shift;
  scale.load_or(weight, width, 1.0f);
  shift.load_or(bias, width, 0.0f);
  wait_for_kernels_ahead();
  Row in;
  in.load(x + row * width, width);
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    for (int i = 0; i < kSize; ++i) {
      sum += Row::place(k) < width ? to_float(in.pack[k].at[i]) : 0.0f;
    }
  }
  const float mean = block_reduce(sum, 0.0f, scratch, Sum{}) / static_cast<float>(width);
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    for (int i = 0; i < kSize; ++i) {
      const float centered = to_float(in.pack[k].at[i]) - mean;
      squares += Row::place(k) < width ? centered * centered : 0.0f;
    }
  }
  const float variance = block_reduce(squares, 0.0f, scratch, Sum{}) / static_cast<float>(width);
  const float rstd = rsqrtf(variance + eps);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int64_t at = Row::place(k);
    if (at < width) {
      Pack<T, kSize> out;
      for (int i = 0; i < kSize; ++i) {
        out.at[i] = from_float<T>((to_float(in.pack[k].at[i]) - mean) * rstd *
                                      to_float(scale.pack[k].at[i]) +
                                  to_float(shift.pack[k].at[i]));
      }
      store_pack<T, kSize>(y + row * width + at, out);
    }
  }
  if (threadIdx.x == 0) {
    mean_out[row] = mean;
    rstd_out[row] = rstd;
  }
}

/// A thread's columns of the parameter gradients, summed over the block's rows.
template <int kSize, int kPacks>
struct ParamSums {
  float weight[kPacks][kSize] = {};
  float bias[kPacks][kSize] = {};
};

/// Block b takes rows b, b + gridDim.x, ... and leaves its sums in scratch [b, 2, width].
template <class T, int kSize, int kPacks>
__global__ void __launch_bounds__(kMaxThreads)
    backward_kernel(int64_t rows, int64_t width, const T* __restrict__ dy, const T* __restrict__ x,
                    const T* __restrict__ weight, const float* __restrict__ mean_in,
                    const float* __restrict__ rstd_in, T* __restrict__ dx,
                    float* __restrict__ scratch_out) {
  using Row = Share<T, kSize, kPacks>;
  __shared__ float scratch[kWarp];
  ParamSums<kSize, kPacks> sums;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    Row grad, in;
    grad.load(dy + row * width, width);
    in.load(x + row * width, width);
    const float mean = mean_in[row];
    const float rstd = rstd_in[row];
    float along_one = 0;
    float along_x = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int64_t at = Row::place(k);
      if (at < width) {
        for (int i = 0; i < kSize; ++i) {
          const float g = to_float(grad.pack[k].at[i]);
          const float normed = (to_float(in.pack[k].at[i]) - mean) * rstd;
          const float scaled = weight == nullptr ? g : g * to_float(weight[at + i]);
          along_one += scaled;
          along_x += scaled * normed;
          sums.weight[k][i] += g * normed;
          sums.bias[k][i] += g;
        }
      }
    }
    along_one = block_reduce(along_one, 0.0f, scratch, Sum{}) / static_cast<float>(width);
    along_x = block_reduce(along_x, 0.0f, scratch, Sum{}) / static_cast<float>(width);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int64_t at = Row::place(k);
      if (at < width) {
        Pack<T, kSize> out;
        for (int i = 0; i < kSize; ++i) {
          const float g = to_float(grad.pack[k].at[i]);
          const float normed = (to_float(in.pack[k].at[i]) - mean) * rstd;
          const float scaled = weight == nullptr ? g : g * to_float(weight[at + i]);
          out.at[i] = from_float<T>(rstd * (scaled - along_one - normed * along_x));
        }
        store_pack<T, kSize>(dx + row * width + at, out);
      }
    }
  }
  float* weight_sums = scratch_out + blockIdx.x * 2 * width;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int64_t at = Row::place(k);
    if (at < width) {
      for (int i = 0; i < kSize; ++i) {
        weight_sums[at + i] = sums.weight[k][i];
        weight_sums[width + at + i] = sums.bias[k][i];
      }
    }
  }
}

/// Calls f(pack size, packs a thread, threads) with the two sizes as constants.
template <int kSize, class F>
void with_shape(int64_t width, F&& f) {
  const int64_t packs = width / kSize;
  const auto threads = [packs](int64_t per_thread) {
    return static_cast<unsigned>(ceil_div(ceil_div(packs, per_thread), kWarp) * kWarp);
  };
  using std::integral_constant;
  if (packs <= 256) {
    f(integral_constant<int, kSize>{}, integral_constant<int, 1>{}, threads(1));
  } else if (packs <= 1024) {
    f(integral_constant<int, kSize>{}, integral_constant<int, 2>{}, threads(2));
  } else {
    f(integral_constant<int, kSize>{}, integral_constant<int, 4>{}, threads(4));
  }
}

template <class T, class F>
void with_row(int64_t width, bool packed, F&& f) {
  constexpr int64_t kMaxPacks = 4 * kMaxThreads;
  const int64_t packs = packed ? width / kPackSize<T> : width;
  require<StateError>(packs <= kMaxPacks, "a layer norm of width ", width, ": the widest here is ",
                      packed ? kMaxPacks * kPackSize<T> : kMaxPacks);
  if (packed) {
    with_shape<kPackSize<T>>(width, f);
  } else {
    with_shape<1>(width, f);
  }
}

template <class T>
bool packs_fit(int64_t width, std::initializer_list<const void*> rows) {
  return width % kPackSize<T> == 0 &&
         std::all_of(rows.begin(), rows.end(), [](const void* p) { return aligned(p, 16); });
}

}  // namespace

int64_t layer_norm_partials(int64_t rows) {
  return std::min(rows, kMaxPartials);
}

void layer_norm(Element element, const LayerNorm& a, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    with_row<T>(a.width, packs_fit<T>(a.width, {a.x, a.weight, a.bias, a.y}),
                [&](auto size, auto packs, unsigned threads) {
                  launch_overlapping("layer norm", forward_kernel<T, size(), packs()>,
                                     dim3(static_cast<unsigned>(a.rows)), dim3(threads), 0, stream,
                                     a.width, a.eps, static_cast<const T*>(a.x),
                                     static_cast<const T*>(a.weight), static_cast<const T*>(a.bias),
                                     static_cast<T*>(a.y), a.mean, a.rstd);
                });
  });
}

void layer_norm_backward(Element element, const LayerNormBackward& a, cudaStream_t stream) {
  const int64_t partials = layer_norm_partials(a.rows);
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    with_row<T>(a.width, packs_fit<T>(a.width, {a.x, a.dy, a.dx}),
                [&](auto size, auto packs, unsigned threads) {
                  launch("layer norm backward", backward_kernel<T, size(), packs()>,
                         dim3(static_cast<unsigned>(partials)), dim3(threads), 0, stream, a.rows,
                         a.width, static_cast<const T*>(a.dy), static_cast<const T*>(a.x),
                         static_cast<const T*>(a.weight), a.mean, a.rstd, static_cast<T*>(a.dx),
                         a.scratch);
                });
  });
  add_partials(element, {a.scratch, partials, a.width, 2 * a.width}, a.d_weight, stream);
  add_partials(element, {a.scratch + a.width, partials, a.width, 2 * a.width}, a.d_bias, stream);
}

}  // namespace reknit::kernels
