// Flat-buffer kernels on CUDA: optimizer updates, sums of squares, accumulation.
#pragma once

#include "reknit/kernels/element.h"
#include "reknit/kernels/update_rules.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace reknit::kernels {

/// Updates the ranges, which must not overlap; elements outside of them are untouched.
/// `scales` is on the device. `weight` is a rounded copy of the master, or null; `element`
/// is its type.
void flat_update(UpdateRule rule, const RuleArrays& arrays, Element element, void* weight,
                 const float* scales, const RuleConstants& constants,
                 const std::vector<RuleRange>& ranges, cudaStream_t stream);

/// Parts of one launch, and doubles of scratch that each of them needs.
constexpr int kMaxParts = 64;
constexpr int64_t kSumSquaresPartials = 1024;
/// A run of elements.
struct Part {
  int64_t begin, end;
};
/// sums[p] = sum of x[i]^2 over part p in fp64, in an order that depends on the parts'
/// lengths and alignment only.
void sum_squares(const float* x, const std::vector<Part>& parts, double* sums, double* scratch,
                 cudaStream_t stream);

/// dst[i] += src[i].
void accumulate(Element element, float* dst, const void* src, int64_t count, cudaStream_t stream);

}  // namespace reknit::kernels
