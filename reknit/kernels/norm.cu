// Layer norm forward and backward: a block or a warp per row, the row in registers.
#include "reknit/kernels/norm.h"

#include "reknit/kernels/column_sums.h"
#include "reknit/kernels/device.cuh"

#include <algorithm>

namespace reknit::kernels {
namespace {

constexpr int kMaxThreads = 512;
constexpr int64_t kMaxPartials = 528;  // three blocks for each multiprocessor
constexpr int kRowWarps = 4;           // of a block whose warps have a row each
constexpr int kMaxLanePacks = 8;       // of such a row
constexpr int64_t kFewRows = 512;      // so few get a block each, which answers sooner

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

/// Weights [at, at + kSize) as fp32; `fallback` where there are none.
template <class T, int kSize>
__device__ void load_weights(const T* weights, int64_t at, float fallback, bool packed,
                             float (&to)[kSize]) {
  if (weights == nullptr) {
    for (int i = 0; i < kSize; ++i) {
      to[i] = fallback;
    }
  } else if (packed) {
    const Pack<T, kSize> pack = load_pack<T, kSize>(weights + at);
    for (int i = 0; i < kSize; ++i) {
      to[i] = to_float(pack.at[i]);
    }
  } else {
    for (int i = 0; i < kSize; ++i) {
      to[i] = to_float(weights[at + i]);
    }
  }
}

/// Many rows: a warp for each, so that nothing waits for a block.
template <class T, int kSize, int kPacks>
__global__ void __launch_bounds__(kWarp* kRowWarps, 5)
    rows_kernel(LayerNorm a, bool packed_weights) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (row >= a.rows) {
    return;
  }
  const T* x = static_cast<const T*>(a.x) + row * a.width;
  const auto place = [lane](int k) { return (lane + k * kWarp) * kSize; };
  Pack<T, kSize> in[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (place(k) < a.width) {
      in[k] = load_pack<T, kSize>(x + place(k));
    }
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    for (int i = 0; i < kSize; ++i) {
      sum += place(k) < a.width ? to_float(in[k].at[i]) : 0.0f;
    }
  }
  const float mean = warp_reduce(sum, Sum{}) / static_cast<float>(a.width);
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    for (int i = 0; i < kSize; ++i) {
      const float centered = to_float(in[k].at[i]) - mean;
      squares += place(k) < a.width ? centered * centered : 0.0f;
    }
  }
  const float variance = warp_reduce(squares, Sum{}) / static_cast<float>(a.width);
  const float rstd = rsqrtf(variance + a.eps);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (place(k) < a.width) {
      float scale[kSize], shift[kSize];
      load_weights(static_cast<const T*>(a.weight), place(k), 1.0f, packed_weights, scale);
      load_weights(static_cast<const T*>(a.bias), place(k), 0.0f, packed_weights, shift);
      Pack<T, kSize> out;
      for (int i = 0; i < kSize; ++i) {
        out.at[i] = from_float<T>((to_float(in[k].at[i]) - mean) * rstd * scale[i] + shift[i]);
      }
      store_pack<T, kSize>(static_cast<T*>(a.y) + row * a.width + place(k), out);
    }
  }
  if (lane == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

/// Few rows: a block for each.
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

/// The block's sums of a pair, in a fixed order; every thread gets them. `scratch` may not be
/// used again before the block's next call, which takes another one.
__device__ inline float2 block_sums(float2 value, float2* scratch) {
  value.x = warp_reduce(value.x, Sum{});
  value.y = warp_reduce(value.y, Sum{});
  if (threadIdx.x % kWarp == 0) {
    scratch[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  value = {0, 0};
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) {
    value.x += scratch[warp].x;
    value.y += scratch[warp].y;
  }
  return value;
}

/// What the backward reads of a row.
template <class T, int kSize, int kPacks>
struct BackwardRow {
  Share<T, kSize, kPacks> grad, in, residual;
  float rstd = 0, shift = 0;  // (x - mean) * rstd is x * rstd + shift

  __device__ void load(const LayerNormBackward& a, int64_t row) {
    grad.load(static_cast<const T*>(a.dy) + row * a.width, a.width);
    in.load(static_cast<const T*>(a.x) + row * a.width, a.width);
    if (a.d_residual != nullptr) {
      residual.load(static_cast<const T*>(a.d_residual) + row * a.width, a.width);
    }
    rstd = a.rstd[row];
    shift = -a.mean[row] * rstd;
  }
};

/// Block b takes rows b, b + gridDim.x, ... and leaves its sums in scratch [b, 2, width].
template <class T, int kSize, int kPacks>
__global__ void __launch_bounds__(kPacks == 1 ? kMaxThreads / 2 : kMaxThreads, kPacks == 1 ? 4 : 1)
    backward_kernel(LayerNormBackward a, bool packed_weights) {
  using Row = Share<T, kSize, kPacks>;
  __shared__ float2 scratch[2][kMaxThreads / kWarp];
  const auto* weight = static_cast<const T*>(a.weight);
  ParamSums<kSize, kPacks> sums;
  int parity = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, parity ^= 1) {
    BackwardRow<T, kSize, kPacks> now;
    now.load(a, row);
    float2 along = {0, 0};  // one, and the normalised row
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      float scale[kSize];
      if (Row::place(k) < a.width) {
        load_weights(weight, Row::place(k), 1.0f, packed_weights, scale);
        for (int i = 0; i < kSize; ++i) {
          const float g = to_float(now.grad.pack[k].at[i]);
          const float normed = to_float(now.in.pack[k].at[i]) * now.rstd + now.shift;
          const float scaled = g * scale[i];
          along.x += scaled;
          along.y += scaled * normed;
          sums.weight[k][i] += g * normed;
          sums.bias[k][i] += g;
        }
      }
    }
    along = block_sums(along, scratch[parity]);
    along.x /= static_cast<float>(a.width);
    along.y /= static_cast<float>(a.width);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      float scale[kSize];
      if (Row::place(k) < a.width) {
        load_weights(weight, Row::place(k), 1.0f, packed_weights, scale);
        Pack<T, kSize> out;
        for (int i = 0; i < kSize; ++i) {
          const float scaled = to_float(now.grad.pack[k].at[i]) * scale[i];
          const float normed = to_float(now.in.pack[k].at[i]) * now.rstd + now.shift;
          const float past = a.d_residual == nullptr ? 0.0f : to_float(now.residual.pack[k].at[i]);
          out.at[i] = from_float<T>(now.rstd * (scaled - along.x - normed * along.y) + past);
        }
        store_pack<T, kSize>(static_cast<T*>(a.dx) + row * a.width + Row::place(k), out);
      }
    }
  }
  float* weight_sums = a.scratch + blockIdx.x * 2 * a.width;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int64_t at = Row::place(k);
    if (at < a.width) {
      for (int i = 0; i < kSize; ++i) {
        weight_sums[at + i] = sums.weight[k][i];
        weight_sums[a.width + at + i] = sums.bias[k][i];
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

bool weights_fit(const void* weight, const void* bias) {
  return aligned(weight, 16) && aligned(bias, 16);
}

/// Queues rows_kernel where the rows are many and a warp holds one.
template <class T>
bool many_rows(const LayerNorm& a, cudaStream_t stream) {
  constexpr int kSize = kPackSize<T>;
  if (a.rows <= kFewRows || a.width > int64_t{kMaxLanePacks} * kWarp * kSize ||
      !packs_fit<T>(a.width, {a.x, a.y})) {
    return false;
  }
  const auto queue = [&](auto kernel) {
    launch("layer norm", kernel, dim3(static_cast<unsigned>(ceil_div(a.rows, kRowWarps))),
           dim3(kWarp * kRowWarps), 0, stream, a, weights_fit(a.weight, a.bias));
  };
  const int64_t packs = ceil_div(a.width, kWarp * kSize);
  if (packs <= 2) {
    queue(rows_kernel<T, kSize, 2>);
  } else if (packs <= 4) {
    queue(rows_kernel<T, kSize, 4>);
  } else {
    queue(rows_kernel<T, kSize, kMaxLanePacks>);
  }
  return true;
}

}  // namespace

int64_t layer_norm_partials(int64_t rows) {
  return std::min(rows, kMaxPartials);
}

void layer_norm(Element element, const LayerNorm& a, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    if (many_rows<T>(a, stream)) {
      return;
    }
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
    with_row<T>(a.width, packs_fit<T>(a.width, {a.x, a.dy, a.dx, a.d_residual}),
                [&](auto size, auto packs, unsigned threads) {
                  launch("layer norm backward", backward_kernel<T, size(), packs()>,
                         dim3(static_cast<unsigned>(partials)), dim3(threads), 0, stream, a,
                         weights_fit(a.weight, nullptr));
                });
  });
  add_partials(element, {a.scratch, partials, a.width, 2 * a.width}, a.d_weight, stream, a.d_bias);
}

}  // namespace reknit::kernels
