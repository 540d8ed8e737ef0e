// Which heads and lengths attention on CUDA takes: for its kernels and for those who plan.
#pragma once

#include <cstdint>

namespace reknit::ops {

inline constexpr int64_t kFlashWidestHead = 256;  ///< libtorch's flash attention
inline constexpr int64_t kCudnnWidestHead = 128;
inline constexpr int64_t kCudnnShortest = 256;  ///< tokens of the longest sequence

}  // namespace reknit::ops
