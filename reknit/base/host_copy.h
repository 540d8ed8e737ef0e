// Copies from the host to a device for which the host does not wait.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace reknit {

/// `host` on `device`, queued on the current stream: a copy through page-locked memory, from
/// which the host goes on at once. On CPU the tensor itself.
at::Tensor to_device(const at::Tensor& host, c10::Device device);

at::Tensor to_device(const std::vector<int64_t>& host, c10::Device device);

}  // namespace reknit
