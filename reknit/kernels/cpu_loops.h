// Helpers of the hand-written CPU loops: element types, vector lanes, clones per CPU.
#pragma once

#include "reknit/base/error.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

// Compiles a function for several CPUs; the best one is chosen when the library is
// loaded. Sanitizers cannot run the code that chooses.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define REKNIT_CPU_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define REKNIT_CPU_CLONES
#endif

namespace reknit::ops::cpu {

inline constexpr int64_t kLanes = 16;
/// 16 floats that are added lane by lane, from any 4-byte aligned address.
typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias));

/// Calls f(T{}) with the element type of `dtype`; throws StateError for any other.
template <class F>
void with_type(at::ScalarType dtype, F&& f) {
  switch (dtype) {
    case at::kFloat:
      return f(float{});
    case at::kHalf:
      return f(at::Half{});
    case at::kBFloat16:
      return f(at::BFloat16{});
    default:
      throw StateError(
          str("a kernel was given ", c10::toString(dtype), "; it takes fp32, fp16 and bf16"));
  }
}

}  // namespace reknit::ops::cpu
