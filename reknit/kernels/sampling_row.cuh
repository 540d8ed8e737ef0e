// What the ways of drawing tokens share on the device.
#pragma once

#include "reknit/base/random.h"
#include "reknit/kernels/device.cuh"
#include "reknit/kernels/sampling.h"

namespace reknit::kernels {

/// Without top-k and top-p; for sampling.cu.
void sample_by_parts(const Sampling& args, cudaStream_t stream);
int64_t sampling_parts_scratch(const Sampling& args);

/// Maps floats to integers of the same order (-0 and 0 to one).
__device__ inline uint32_t order_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float value_of(uint32_t order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

struct Scratch {
  uint64_t words[kWarp];
  double sums[kWarp];
  float floats[kWarp];
  int64_t result;
};

/// One row of logits as the draw sees it.
struct Row {
  const float* logits;
  int64_t columns;
  int64_t forbidden;  // a column that cannot be drawn, or -1
  float top;          // largest logit that can be drawn
  float rate;         // 1 / temperature

  __device__ float at(int64_t i) const { return i == forbidden ? -INFINITY : logits[i]; }
  __device__ double weight(float x) const { return expf((x - top) * rate); }
};

/// Over a warp: the sum of the lanes up to this one.
__device__ inline double inclusive_scan(double value) {
  const int lane = threadIdx.x % kWarp;
  for (int step = 1; step < kWarp; step *= 2) {
    const double other = __shfl_up_sync(kAllLanes, value, step);
    value += lane >= step ? other : 0.0;
  }
  return value;
}

}  // namespace reknit::kernels
