#include "reknit/base/gpu_arithmetic.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace reknit {

void keep_partial_sums_wide() {
  static const bool chosen = [] {
    at::globalContext().setAllowFP16ReductionCuBLAS(false);
    at::globalContext().setAllowBF16ReductionCuBLAS(false);
    return true;
  }();
  static_cast<void>(chosen);
}

void fix_order_of_gpu_sums(bool fixed) {
  if (fixed) {
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // cuBLAS's own condition
  }
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::globalContext().setDeterministicAlgorithms(fixed, /*warn_only=*/false);
}

}  // namespace reknit
