// Linear maps of few rows, as a decode step has them, against double precision.
#include "reknit/kernels/lm_head.h"
#include "reknit/kernels/ops.h"

#include "tests/kernels/cases.h"

namespace reknit::ops {
namespace {

using FewRows = OnCases;

struct Sizes {
  int64_t in;
  int64_t out;
};

// Tiles and splits of every kind, and shapes that are left to other kernels.
std::vector<Sizes> sizes() {
  return {{64, 16},    {32, 16},     {64, 48},    {256, 768},   {512, 1040}, {1024, 1024},
          {4096, 256}, {1024, 3072}, {256, 2064}, {192, 25008}, {40, 24}};
}

TEST_P(FewRows, ProductBiasActivationAndResidualAreThoseOfTheDefinition) {
  for (const auto& [in, out] : sizes()) {
    for (const int64_t rows : {1, 7, 8, 9, 16, 17}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << in << " -> " << out);
      const at::Tensor x = normal({rows, in});
      const at::Tensor weight = normal({out, in}, 0.3);
      const at::Tensor bias = normal({out}, 3.0);
      const at::Tensor residual = normal({rows, out}, 3.0);
      const at::Tensor product = at::mm(x.to(at::kFloat), weight.to(at::kFloat).t());
      const at::Tensor sum = product + bias;
      const double b = GetParam().dtype == at::kFloat ? 1e-4 : bound();
      expect_close(linear(x, view(weight), {}), product, b);
      expect_close(linear(x, view(weight), view(bias)), sum, b);
      expect_close(linear_add(x, view(weight), view(bias), residual), sum + residual, b);
      expect_close(linear_activation(x, view(weight), view(bias), Activation::kRelu), at::relu(sum),
                   b);
      expect_close(linear_activation(x, view(weight), view(bias), Activation::kGeluTanh),
                   at::gelu(sum, "tanh"), b);
      expect_close(linear_activation(x, view(weight), {}, Activation::kGelu), at::gelu(product), b);
      expect_close(logits(x, view(weight)), product, b);
    }
  }
}

TEST_P(FewRows, BitsOfARowDoNotDependOnTheOthers) {
  if (GetParam().device.is_cpu() || GetParam().dtype == at::kFloat) {
    GTEST_SKIP() << "a matter of 16 bits on a GPU";
  }
  const at::Tensor x = normal({16, 1024});
  for (const int64_t out : {1024, 3072, 4096, 50272}) {
    const at::Tensor weight = normal({out, 1024});
    const at::Tensor all = linear(x, view(weight), {});
    for (const int64_t rows : {1, 3, 8, 15}) {
      EXPECT_TRUE(at::equal(linear(x.narrow(0, 0, rows), view(weight), {}), all.narrow(0, 0, rows)))
          << rows << " rows -> " << out;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FewRows, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace reknit::ops
