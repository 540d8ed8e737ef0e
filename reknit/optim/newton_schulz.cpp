#include "reknit/optim/newton_schulz.h"

#include <ATen/ATen.h>

namespace reknit {

at::Tensor newton_schulz(const at::Tensor& matrix, int64_t steps) {
  constexpr double kLinear = 3.4445;
  constexpr double kCubic = -4.7750;
  constexpr double kQuintic = 2.0315;
  constexpr double kSmallestNorm = 1e-7;
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = tall ? matrix.t() : matrix;
  x = x / x.norm().clamp_min(kSmallestNorm);
  for (int64_t i = 0; i < steps; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    const at::Tensor factor = at::addmm(gram, gram, gram, kCubic, kQuintic);
    x = at::addmm(x, factor, x, kLinear, 1.0);
  }
  return tall ? x.t() : x;
}

}  // namespace reknit
