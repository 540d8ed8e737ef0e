// Log-softmax over rows of logits: one block a row, one pass.
#include "reknit/kernels/logprobs.h"

#include "reknit/kernels/device.cuh"

namespace reknit::kernels {
namespace {

constexpr int kThreads = 512;

/// Sums over some columns relative to `top`: of e^(x - top), and of that times x - top.
struct Running {
  float top = -INFINITY;
  float total = 0;
  float weighted = 0;

  __device__ void add(float x) {
    if (x == -INFINITY) {
      return;  // probability 0; the product with x - top would be NaN
    }
    if (x > top) {
      rescale(x);
    }
    const float weight = expf(x - top);
    total += weight;
    weighted += weight * (x - top);
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

__global__ void __launch_bounds__(kThreads) forward_kernel(Logprobs a) {
  __shared__ float scratch[kWarp];
  const int64_t row = blockIdx.x;
  const float* logits = a.logits + row * a.columns;
  Running running;
  for (int64_t column = threadIdx.x; column < a.columns; column += kThreads) {
    running.add(logits[column]);
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

/// Block (part, row): one element a thread.
template <class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(LogprobsBackward a) {
  const int64_t row = blockIdx.y;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= a.columns) {
    return;
  }
  const int64_t target = a.targets[row];
  const int64_t at = row * a.columns + column;
  const float probability = expf(a.logits[at] - a.lse[row]);
  const float gradient = a.d_logp[row] * ((column == target ? 1.0f : 0.0f) - probability);
  static_cast<T*>(a.d_logits)[at] = from_float<T>(target < 0 ? 0.0f : gradient);
}

}  // namespace

void logprobs(const Logprobs& a, cudaStream_t stream) {
  launch("log-probabilities", forward_kernel, dim3(static_cast<unsigned>(a.rows)), dim3(kThreads),
         0, stream, a);
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
      launch("log-probabilities backward", backward_kernel<T>,
             dim3(static_cast<unsigned>(ceil_div(a.columns, kThreads)),
                  static_cast<unsigned>(part.rows)),
             dim3(kThreads), 0, stream, part);
    }
  });
}

}  // namespace reknit::kernels
