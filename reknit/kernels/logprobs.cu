// Log-softmax over rows of logits: one block a row, one pass.
#include "reknit/kernels/logprobs.h"

#include "reknit/kernels/device.cuh"

#include <type_traits>

namespace reknit::kernels {
namespace {

constexpr int kThreads = 512;

/// Sums over some columns relative to `top`: of e^(x - top), and of that times x - top.
struct Running {
  float top = -INFINITY;
  float total = 0;
  float weighted = 0;

  template <int kSize>
  __device__ void add(const Pack<float, kSize>& pack) {
    float highest = pack.at[0];
    for (int i = 1; i < kSize; ++i) {
      highest = fmaxf(highest, pack.at[i]);
    }
    if (highest > top) {
      rescale(highest);
    }
    for (int i = 0; i < kSize; ++i) {
      const float x = pack.at[i];
      if (x != -INFINITY) {  // probability 0; the product with x - top would be NaN
        const float weight = expf(x - top);
        total += weight;
        weighted += weight * (x - top);
      }
    }
  }
  __device__ void rescale(float new_top) {
    if (top != -INFINITY) {
      const float factor = expf(top - new_top);
      weighted = factor * (weighted + total * (top - new_top));
      total *= factor;
    }
    top = new_top;
  }
};

template <int kSize>
__global__ void __launch_bounds__(kThreads) forward_kernel(Logprobs a) {
  __shared__ float scratch[kWarp];
  const int64_t row = blockIdx.x;
  const float* logits = a.logits + row * a.columns;
  Running running;
#pragma unroll 4
  for (int64_t column = threadIdx.x * kSize; column < a.columns; column += kThreads * kSize) {
    running.add(load_pack<float, kSize>(logits + column));
  }
  const float top = block_reduce(running.top, -INFINITY, scratch, Max{});
  // A thread that saw nothing but NaN has no top, and a total that stays NaN.
  if (running.top != -INFINITY) {
    running.rescale(top);
  }
  const float total = block_reduce(running.total, 0.0f, scratch, Sum{});
  const float weighted = block_reduce(running.weighted, 0.0f, scratch, Sum{});
  if (threadIdx.x == 0) {
    const int64_t target = a.targets[row];
    const float log_total = logf(total);
    a.lse[row] = log_total + top;
    a.logp[row] = target < 0 ? 0.0f : logits[target] - top - log_total;
    if (a.entropy != nullptr) {
      a.entropy[row] = log_total - weighted / total;
    }
  }
}

/// Block (part, row): one pack a thread.
template <class T, int kSize>
__global__ void __launch_bounds__(kThreads) backward_kernel(LogprobsBackward a) {
  const int64_t row = blockIdx.y;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kSize;
  if (first >= a.columns) {
    return;
  }
  const int64_t target = a.targets[row];
  const float lse = a.lse[row];
  const float d_logp = a.d_logp[row];
  const int64_t at = row * a.columns + first;
  const Pack<float, kSize> logits = load_pack<float, kSize>(a.logits + at);
  Pack<T, kSize> out;
  for (int i = 0; i < kSize; ++i) {
    const float probability = expf(logits.at[i] - lse);
    const float gradient = d_logp * ((first + i == target ? 1.0f : 0.0f) - probability);
    out.at[i] = from_float<T>(target < 0 ? 0.0f : gradient);
  }
  store_pack<T, kSize>(static_cast<T*>(a.d_logits) + at, out);
}

/// Calls f(elements of a pack) with a constant: packs need whole ones in a row.
template <class F>
void with_packs(int64_t columns, const void* logits, const void* d_logits, F&& f) {
  constexpr int kLogitPack = kPackSize<float>;
  if (columns % kLogitPack == 0 && aligned(logits, 16) && aligned(d_logits, 16)) {
    f(std::integral_constant<int, kLogitPack>{});
  } else {
    f(std::integral_constant<int, 1>{});
  }
}

}  // namespace

void logprobs(const Logprobs& a, cudaStream_t stream) {
  with_packs(a.columns, a.logits, nullptr, [&](auto size) {
    launch("log-probabilities", forward_kernel<size()>, dim3(static_cast<unsigned>(a.rows)),
           dim3(kThreads), 0, stream, a);
  });
}

void logprobs_backward(Element element, const LogprobsBackward& a, cudaStream_t stream) {
  constexpr int64_t kMaxRows = 65535;  // of a grid's second dimension
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t first = 0; first < a.rows; first += kMaxRows) {
      LogprobsBackward part = a;
      part.rows = a.rows - first < kMaxRows ? a.rows - first : kMaxRows;
      part.logits += first * a.columns;
      part.targets += first;
      part.lse += first;
      part.d_logp += first;
      part.d_logits = static_cast<T*>(a.d_logits) + first * a.columns;
      with_packs(a.columns, part.logits, part.d_logits, [&](auto size) {
        launch("log-probabilities backward", backward_kernel<T, size()>,
               dim3(static_cast<unsigned>(ceil_div(a.columns, kThreads * size())),
                    static_cast<unsigned>(part.rows)),
               dim3(kThreads), 0, stream, part);
      });
    }
  });
}

}  // namespace reknit::kernels
