#include "reknit/base/host_copy.h"

#include <ATen/ATen.h>

namespace reknit {

at::Tensor to_device(const at::Tensor& host, c10::Device device) {
  return device.is_cpu() ? host : host.pin_memory().to(device, /*non_blocking=*/true);
}

at::Tensor to_device(const std::vector<int64_t>& host, c10::Device device) {
  return to_device(at::tensor(host, at::TensorOptions(at::kLong)), device);
}

}  // namespace reknit
