#include "tests/support/device.h"

#include "reknit/base/error.h"
#include "reknit/base/rank.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace reknit::testing_support {
namespace {

class NeedsTheDevice : public testing::Environment {
 public:
  void SetUp() override {
    if (test_device().is_cuda() && !at::hasCUDA()) {
      GTEST_SKIP() << "[  SKIPPED ] REKNIT_TEST_DEVICE=cuda, and there is no GPU";
    }
  }
};

[[maybe_unused]] const auto* const kNeedsTheDevice =
    testing::AddGlobalTestEnvironment(new NeedsTheDevice);

}  // namespace

c10::Device test_device() {
  const char* wanted = std::getenv("REKNIT_TEST_DEVICE");
  const std::string name = wanted == nullptr ? "cpu" : wanted;
  require<UsageError>(name == "cpu" || name == "cuda", "REKNIT_TEST_DEVICE=", name,
                      " is neither cpu nor cuda");
  return name == "cpu" ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, 0);
}

std::vector<c10::Device> test_devices() {
  std::vector<c10::Device> devices{c10::kCPU};
  if (at::hasCUDA()) {
    devices.emplace_back(c10::kCUDA, 0);
  }
  return devices;
}

std::chrono::seconds patience() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kUsual = 10;
#else
  constexpr int kUsual = 1;
#endif
  const char* slowdown = std::getenv("REKNIT_TEST_SLOWDOWN");
  return std::chrono::seconds(20) * (slowdown == nullptr ? kUsual : std::atoi(slowdown));
}

at::Tensor rank_memory(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(this_rank().device));
}

}  // namespace reknit::testing_support
