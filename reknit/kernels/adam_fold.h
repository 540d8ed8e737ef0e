// The constants of one Adam step, folded for the loops over elements.
#pragma once

#include "reknit/kernels/update.h"

namespace reknit::ops {

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

AdamConstants fold(const AdamStep& step);
AdamRange fold(const AdamStep& step, const UpdateRange& range);

}  // namespace reknit::ops
