// Compiled without errno of mathematical functions, so that the root is vectorised.
#include "reknit/kernels/adam_step.h"

#include "reknit/kernels/cpu_loops.h"

#include <cmath>

namespace reknit::kernels {
namespace {

REKNIT_CPU_CLONES
void step(float* __restrict master, float* __restrict m, float* __restrict v,
          const float* __restrict grad, int64_t count, float scale, const AdamConstants& constants,
          const AdamRange& range) {
  const AdamConstants c = constants;
  const AdamRange r = range;
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * scale + r.l2 * master[i];
    m[i] += (1.0f - c.beta1) * (g - m[i]);
    v[i] += (1.0f - c.beta2) * (g * g - v[i]);
    master[i] = master[i] * r.keep - r.rate * m[i] / (std::sqrt(v[i]) * c.v_scale + c.eps);
  }
}

}  // namespace

void adam_step_cpu(float* master, float* m, float* v, const float* grad, int64_t count, float scale,
                   const AdamConstants& constants, const AdamRange& range) {
  step(master, m, v, grad, count, scale, constants, range);
}

}  // namespace reknit::kernels
