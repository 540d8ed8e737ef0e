// Where the ranks of a test live: on the CPU, or all of them on one GPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <vector>

namespace reknit::testing_support {

/// The CPU, or GPU 0 where REKNIT_TEST_DEVICE=cuda. Where that GPU is missing all tests of
/// the program are skipped.
c10::Device test_device();

/// Every device of this machine that a single-device test can run on.
std::vector<c10::Device> test_devices();

/// The allocator of a slot pool on the calling rank's device.
at::Tensor rank_memory(int64_t bytes);

/// A deadline of collectives that only a mistake exceeds: 20 s, times REKNIT_TEST_SLOWDOWN where
/// something makes the tests slow (default under sanitizers: 10).
std::chrono::seconds patience();

/// What fp32 results on `device` may differ by where they may by `on_cpu` on the CPU: GPUs
/// take sums in more and smaller pieces, and round cos and exp otherwise.
inline double fp32_bound(double on_cpu, c10::Device device = test_device()) {
  return device.is_cpu() ? on_cpu : 10 * on_cpu;
}

}  // namespace reknit::testing_support
