// How tensors become arguments of the raw launchers. Built only with CUDA.
#pragma once

#include "reknit/base/error.h"
#include "reknit/kernels/element.h"

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

namespace reknit::ops::cuda {

inline kernels::Element element_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return kernels::Element::kFp32;
    case at::kHalf:
      return kernels::Element::kFp16;
    case at::kBFloat16:
      return kernels::Element::kBf16;
    default:
      throw StateError(
          str("a kernel was given ", c10::toString(dtype), "; it takes fp32, fp16 and bf16"));
  }
}

/// The stream that work on the device of `x` goes to.
inline cudaStream_t stream_of(const at::Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
}

inline const void* data_or_null(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr() : nullptr;
}
inline void* mutable_or_null(const at::Tensor& x) {
  return x.defined() ? x.mutable_data_ptr() : nullptr;
}

/// fp32 scratch on the device of `like`; may be empty.
inline at::Tensor scratch(const at::Tensor& like, int64_t count) {
  return at::empty({count}, like.options().dtype(at::kFloat));
}

}  // namespace reknit::ops::cuda
