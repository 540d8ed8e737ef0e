// A build without CUDA sees no CUDA device.
#include "apps/devices.h"

#include "apps/device_memory.h"
#include "reknit/base/error.h"

namespace reknit {

bool built_with_cuda() {
  return false;
}

std::vector<GpuInfo> cuda_devices() {
  return {};
}

int64_t free_device_memory(int device) {
  throw UsageError(str("CUDA device ", device, " was asked for in a build without CUDA"));
}

std::vector<std::string> cuda_versions() {
  return {};
}

}  // namespace reknit
