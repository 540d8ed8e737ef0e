// Element types as the raw launchers see them. No torch, no CUDA.
#pragma once

namespace reknit::kernels {

enum class Element { kFp32, kFp16, kBf16 };

}  // namespace reknit::kernels
