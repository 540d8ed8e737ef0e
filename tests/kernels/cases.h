// What the kernel tests share: devices and dtypes to run on, inputs, bounds.
#pragma once

#include "reknit/base/param_view.h"
#include "reknit/base/rank.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace reknit::ops {

struct Case {
  c10::Device device;
  at::ScalarType dtype;
};

inline std::vector<c10::Device> devices() {
  std::vector<c10::Device> found = {c10::kCPU};
  if (at::globalContext().hasCUDA()) {
    found.emplace_back(c10::kCUDA, 0);
  }
  return found;
}

inline std::vector<Case> cases() {
  std::vector<Case> all;
  for (const c10::Device device : devices()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      all.push_back({device, dtype});
    }
  }
  return all;
}

inline std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.device.is_cpu() ? "Cpu" : "Cuda") + c10::toString(info.param.dtype);
}

inline std::string device_name(const testing::TestParamInfo<c10::Device>& info) {
  return info.param.is_cpu() ? "Cpu" : "Cuda";
}

/// Runs once for each device and dtype.
class OnCases : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { at::manual_seed(7); }
  at::TensorOptions options() const {
    return at::device(GetParam().device).dtype(GetParam().dtype);
  }
  at::TensorOptions fp32() const { return options().dtype(at::kFloat); }
  at::TensorOptions int64() const { return options().dtype(at::kLong); }
  /// Normal values, already rounded to the dtype.
  at::Tensor normal(std::vector<int64_t> shape, double scale = 1.0) const {
    return (at::randn(shape, at::kDouble) * scale).to(options());
  }
  at::Tensor integers(int64_t limit, std::vector<int64_t> shape) const {
    return at::randint(limit, shape, at::kLong).to(int64());
  }
  double bound() const { return GetParam().dtype == at::kFloat ? 1e-5 : 1e-2; }

 private:
  const RankScope rank_{0, 1, GetParam().device};
};

/// Runs once for each device.
class OnDevices : public testing::TestWithParam<c10::Device> {
 protected:
  void SetUp() override { at::manual_seed(7); }

 private:
  const RankScope rank_{0, 1, GetParam()};
};

struct AlwaysReadable : ReadGuard {
  void require_readable(const std::string&, uint64_t, uint64_t) const override {}
};

inline ParamView view(const at::Tensor& value) {
  static const std::string name = "weight";
  static const auto guard = std::make_shared<AlwaysReadable>();
  return ParamView(&name, value, guard, 0, 0);
}

inline at::Tensor fp64(const at::Tensor& x) {
  return x.to(at::kCPU, at::kDouble);
}

/// |actual - expected| is within `bound` of the largest expected value.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, double bound) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  if (actual.numel() == 0) {
    return;
  }
  const double size = fp64(expected).abs().max().item<double>();
  const double error = (fp64(actual) - fp64(expected)).abs().max().item<double>();
  EXPECT_LE(error, bound * (size + 1e-3)) << "largest expected value " << size;
}

/// d sum(d_out * f(x)) / dx by central differences; f maps fp64 to fp64.
inline at::Tensor central_differences(const std::function<at::Tensor(const at::Tensor&)>& f,
                                      const at::Tensor& x, const at::Tensor& d_out) {
  const double h = 1e-5;
  const at::Tensor at_x = fp64(x).clone(at::MemoryFormat::Contiguous);
  const at::Tensor weights = fp64(d_out);
  at::Tensor gradient = at::zeros_like(at_x);
  auto* value = at_x.mutable_data_ptr<double>();
  for (int64_t i = 0; i < at_x.numel(); ++i) {
    const double center = value[i];
    value[i] = center + h;
    const double above = (f(at_x) * weights).sum().item<double>();
    value[i] = center - h;
    const double below = (f(at_x) * weights).sum().item<double>();
    value[i] = center;
    gradient.mutable_data_ptr<double>()[i] = (above - below) / (2 * h);
  }
  return gradient;
}

}  // namespace reknit::ops
