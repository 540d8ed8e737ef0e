// A build without CUDA sees no CUDA device.
#include "apps/devices.h"

namespace reknit {

bool built_with_cuda() {
  return false;
}

std::vector<GpuInfo> cuda_devices() {
  return {};
}

std::vector<std::string> cuda_versions() {
  return {};
}

}  // namespace reknit
