// Adam, gradient accumulation and sums of squares against double precision.
#include "reknit/kernels/update.h"

#include "tests/kernels/cases.h"

#include <cmath>

namespace reknit::ops {
namespace {

using Update = OnCases;

/// The published algorithm, one element after the other.
void adam_fp64(const std::vector<at::Tensor>& state, const at::Tensor& grad, double grad_scale,
               const AdamStep& step, const std::vector<UpdateRange>& ranges) {
  for (const UpdateRange& range : ranges) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      double& w = state[0].mutable_data_ptr<double>()[i];
      double& m = state[1].mutable_data_ptr<double>()[i];
      double& v = state[2].mutable_data_ptr<double>()[i];
      const double lr = step.lr * range.lr_factor;
      double g = grad.const_data_ptr<double>()[i] * grad_scale;
      if (step.decoupled) {
        w -= lr * range.weight_decay * w;
      } else {
        g += range.weight_decay * w;
      }
      m = step.beta1 * m + (1 - step.beta1) * g;
      v = step.beta2 * v + (1 - step.beta2) * g * g;
      const double m_hat = step.bias_correction ? m / (1 - std::pow(step.beta1, step.step)) : m;
      const double v_hat = step.bias_correction ? v / (1 - std::pow(step.beta2, step.step)) : v;
      w -= lr * m_hat / (std::sqrt(v_hat) + step.eps);
    }
  }
}

TEST_P(Update, AdamFollowsThePublishedAlgorithmOverItsRanges) {
  const int64_t n = 3001;
  const std::vector<UpdateRange> ranges = {
      {0, 1100, 0.1, 1.0}, {1100, 1103, 0.0, 0.5}, {1200, 3001, 0.01, 2.0}};
  for (const bool decoupled : {true, false}) {
    for (const bool bias_correction : {true, false}) {
      const AdamState state{at::randn({n}, at::kFloat).to(fp32()), at::zeros({n}, fp32()),
                            at::zeros({n}, fp32())};
      const at::Tensor weight = state.master.to(options()).clone();
      const at::Tensor untouched = weight.narrow(0, 1103, 97).clone();
      const std::vector<at::Tensor> expected = {
          fp64(state.master).clone(), at::zeros({n}, at::kDouble), at::zeros({n}, at::kDouble)};
      const at::Tensor grad_scale = at::full({1}, 0.25f, fp32());
      for (int64_t number = 1; number <= 3; ++number) {
        const at::Tensor grad = at::randn({n}, at::kFloat).to(fp32());
        const AdamStep step{1e-2, 0.9, 0.95, 1e-8, decoupled, bias_correction, number};
        adam_update(state, grad, grad_scale, weight, step, ranges);
        adam_fp64(expected, fp64(grad).contiguous(), 0.25, step, ranges);
      }
      expect_close(state.master, expected[0], 1e-5);
      expect_close(state.exp_avg, expected[1], 1e-5);
      expect_close(state.exp_avg_sq, expected[2], 1e-5);
      EXPECT_TRUE(
          at::equal(weight.narrow(0, 0, 1103), state.master.narrow(0, 0, 1103).to(options())));
      EXPECT_TRUE(at::equal(weight.narrow(0, 1103, 97), untouched));
    }
  }
}

TEST_P(Update, TheWeightMayBeTheMasterOrAbsent) {
  const at::Tensor grad = at::randn({100}, at::kFloat).to(fp32());
  const at::Tensor one = at::ones({1}, fp32());
  const auto fresh = [&] {
    return AdamState{at::ones({100}, fp32()), at::zeros({100}, fp32()), at::zeros({100}, fp32())};
  };
  const AdamState with_itself = fresh();
  const AdamState without = fresh();
  adam_update(with_itself, grad, one, with_itself.master, {}, {{0, 100, 0.1, 1.0}});
  adam_update(without, grad, one, {}, {}, {{0, 100, 0.1, 1.0}});
  EXPECT_TRUE(at::equal(with_itself.master, without.master));
  adam_update(without, grad, one, {}, {}, {});
  EXPECT_TRUE(at::equal(with_itself.master, without.master));
}

TEST_P(Update, AViewAtAnyPlaceIsUpdatedAsTheWholeIs) {
  const AdamState whole{at::ones({64}, fp32()), at::zeros({64}, fp32()), at::zeros({64}, fp32())};
  const at::Tensor grad = at::randn({64}, at::kFloat).to(fp32());
  const at::Tensor weight = at::zeros({64}, options());
  const auto tail = [](const at::Tensor& x) { return x.narrow(0, 3, 50); };
  adam_update({tail(whole.master), tail(whole.exp_avg), tail(whole.exp_avg_sq)}, tail(grad),
              at::ones({1}, fp32()), tail(weight), {}, {{0, 50, 0.0, 1.0}});
  // The first step moves each element by lr against the sign of its gradient.
  expect_close(tail(whole.master), 1 - 1e-3 * fp64(tail(grad)).sign(), 1e-5);
  EXPECT_TRUE(at::equal(tail(weight), tail(whole.master).to(options())));
  EXPECT_EQ(weight.narrow(0, 0, 3).abs().max().item<float>(), 0.0f);
  EXPECT_EQ(weight.narrow(0, 53, 11).abs().max().item<float>(), 0.0f);
}

TEST_P(Update, AccumulateAddsAnyFloatTypeInFp32) {
  const at::Tensor sum = at::randn({1003}, at::kFloat).to(fp32());
  const at::Tensor src = normal({1003});
  const at::Tensor expected = fp64(sum) + fp64(src);
  accumulate(sum, src);
  expect_close(sum, expected, 1e-6);
  accumulate(at::empty({0}, fp32()), normal({0}));
}

TEST_P(Update, SumSquaresIsFp64AndTheSameBitsEveryTime) {
  const at::Tensor x = at::randn({100001}, at::kFloat).to(fp32());
  const at::Tensor sum = sum_squares(x);
  ASSERT_EQ(sum.scalar_type(), at::kDouble);
  ASSERT_EQ(sum.sizes(), at::IntArrayRef({1}));
  expect_close(sum, fp64(x).square().sum().view({1}), 1e-13);
  EXPECT_TRUE(at::equal(sum, sum_squares(x)));
  EXPECT_EQ(sum_squares(at::empty({0}, fp32())).item<double>(), 0.0);
  expect_close(sum_squares(x.narrow(0, 1, 50)), fp64(x).narrow(0, 1, 50).square().sum().view({1}),
               1e-13);
}

TEST_P(Update, NotANumberStaysVisibleInTheSum) {
  const at::Tensor x = at::zeros({5000}, fp32());
  x[4321] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(sum_squares(x).item<double>()));
  x[4321] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(sum_squares(x).item<double>()));
}

INSTANTIATE_TEST_SUITE_P(All, Update, testing::ValuesIn(cases()), case_name);

TEST(UpdateRanges, ARangeOutsideTheTensorsIsRefused) {
  const at::Tensor x = at::zeros({4});
  EXPECT_THROW(adam_update({x, x.clone(), x.clone()}, x, at::ones({1}), {}, {}, {{0, 5, 0.0, 1.0}}),
               StateError);
  EXPECT_THROW(adam_update({x, x.clone(), x.clone()}, at::zeros({3}), at::ones({1}), {}, {}, {}),
               StateError);
}

}  // namespace
}  // namespace reknit::ops
