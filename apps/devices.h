// The GPUs of this machine, usable or not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace reknit {

struct GpuInfo {
  std::string name;
  int major = 0;  ///< compute capability
  int minor = 0;
  int64_t memory_bytes = 0;
};

/// Visible CUDA devices, as the runtime numbers them. Empty in a build without CUDA.
std::vector<GpuInfo> cuda_devices();

/// Versions of CUDA's runtime, its driver and NCCL, "name version" each. Empty in a
/// build without CUDA.
std::vector<std::string> cuda_versions();

/// True in a build with CUDA.
bool built_with_cuda();

/// GPUs that are plugged in but cannot be used by this build, each as a sentence that
/// names it and says why ("AMD ...: ROCm is not supported"). Reads /proc and /sys only.
std::vector<std::string> unusable_gpus(const std::vector<GpuInfo>& usable);

/// Why a CUDA device is too old; empty if it is not.
std::string too_old(const GpuInfo& gpu);

}  // namespace reknit
