// Flat-buffer kernels on CUDA: Adam, sums of squares, accumulation.
#pragma once

#include "reknit/kernels/adam_step.h"
#include "reknit/kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace reknit::kernels {

struct AdamTensors {
  float* master = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  const float* grad = nullptr;
  const float* grad_scale = nullptr;  ///< one value, read on the device
  void* weight = nullptr;             ///< rounded copy of the master, or null
};

/// Ranges must not overlap. `element` is that of `weight`.
void adam_update(Element element, const AdamTensors& tensors, const AdamConstants& constants,
                 const std::vector<AdamRange>& ranges, cudaStream_t stream);

/// Doubles of scratch that sum_squares needs.
constexpr int64_t kSumSquaresPartials = 1024;
/// *sum = sum of x[i]^2 in fp64, in an order that depends on `count` and alignment only.
void sum_squares(const float* x, int64_t count, double* sum, double* scratch, cudaStream_t stream);

/// dst[i] += src[i].
void accumulate(Element element, float* dst, const void* src, int64_t count, cudaStream_t stream);

}  // namespace reknit::kernels
