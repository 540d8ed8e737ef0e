// One step of Adam over elements: its constants, folded, and the CPU loop.
#pragma once

#include <cstdint>

namespace reknit::kernels {

/// m and v move by (1 - beta), then
/// master = master * keep - rate * m / (sqrt(v) * v_scale + eps).
struct AdamConstants {
  float beta1, beta2, v_scale, eps;
};

/// Elements [begin, end) and their own constants; `l2` times the master joins the gradient.
struct AdamRange {
  int64_t begin, end;
  float l2, keep, rate;
};

/// Updates `count` elements on CPU with the constants of `range` (its bounds are not
/// used); the gradient is multiplied by `scale`.
void adam_step_cpu(float* master, float* m, float* v, const float* grad, int64_t count, float scale,
                   const AdamConstants& constants, const AdamRange& range);

}  // namespace reknit::kernels
