// Optimizer updates, gradient accumulation and sums of squares against double precision.
#include "reknit/kernels/update.h"

#include "tests/kernels/cases.h"

#include <cmath>
#include <functional>

namespace reknit::ops {
namespace {

using Update = OnCases;

/// One element of each array of a shard, in double precision.
struct Element {
  double w, s0, s1, g;
};
using Rule = std::function<void(Element&, const UpdateRange&, int64_t step)>;
using Call = std::function<void(const FlatShard&, const at::Tensor& scales, int64_t step,
                                const std::vector<UpdateRange>&)>;

/// Runs three updates over ranges with scales and rates of their own, and beside them the
/// published rule, one element after the other. `states`: how many the rule has; `moves`
/// false: it leaves a direction in place of the gradient.
class Compared {
 public:
  Compared(at::TensorOptions options, size_t states, bool moves)
      : options_(options), states_(states), moves_(moves) {}

  void run(const Call& call, const Rule& rule) const {
    const at::TensorOptions fp32 = options_.dtype(at::kFloat);
    const at::Tensor master = at::randn({kCount}, at::kFloat).to(fp32);
    FlatShard shard{master, {}, master.to(options_).clone(), {}};
    for (size_t i = 0; i < states_; ++i) {
      shard.states[i] = at::zeros({kCount}, fp32);
    }
    const at::Tensor first = shard.weight.clone();
    std::vector<Element> expected(kCount);
    const at::Tensor start = fp64(master).contiguous();
    for (int64_t i = 0; i < kCount; ++i) {
      expected[i] = {start.const_data_ptr<double>()[i], 0, 0, 0};
    }
    const at::Tensor scales = at::tensor({0.25f, 2.0f}, at::kFloat).to(fp32);
    for (int64_t step = 1; step <= 3; ++step) {
      shard.grad = at::randn({kCount}, at::kFloat).to(fp32);
      const at::Tensor grad = fp64(shard.grad).contiguous();
      call(shard, scales, step, kRanges);
      for (const UpdateRange& range : kRanges) {
        for (int64_t i = range.begin; i < range.end; ++i) {
          expected[i].g = grad.const_data_ptr<double>()[i] * (range.scale == 0 ? 0.25 : 2.0);
          rule(expected[i], range, step);
        }
      }
      check(shard, expected, grad);
    }
    const at::Tensor before_gap = moves_ ? shard.master.to(options_) : first;
    EXPECT_TRUE(at::equal(shard.weight.narrow(0, 0, 1103), before_gap.narrow(0, 0, 1103)));
    EXPECT_TRUE(at::equal(shard.weight.narrow(0, 1103, 97), first.narrow(0, 1103, 97)));
  }

 private:
  void check(const FlatShard& shard, const std::vector<Element>& expected,
             const at::Tensor& grad) const {
    const auto column = [&](double Element::*member) {
      at::Tensor values = at::empty({kCount}, at::kDouble);
      for (int64_t i = 0; i < kCount; ++i) {
        values.mutable_data_ptr<double>()[i] = expected[i].*member;
      }
      return values;
    };
    expect_close(shard.master, column(&Element::w), 1e-5);
    if (states_ > 0) {
      expect_close(shard.states[0], column(&Element::s0), 1e-5);
    }
    if (states_ > 1) {
      expect_close(shard.states[1], column(&Element::s1), 1e-5);
    }
    at::Tensor left = grad;
    if (!moves_) {
      left = column(&Element::g);
      left.narrow(0, 1103, 97).copy_(grad.narrow(0, 1103, 97));
    }
    expect_close(shard.grad, left, 2e-5);
  }

  static constexpr int64_t kCount = 3001;
  inline static const std::vector<UpdateRange> kRanges = {
      {0, 1100, 0.1, 1e-2, 0}, {1100, 1103, 0.0, 5e-3, 1}, {1200, 3001, 0.01, 2e-2, 0}};
  at::TensorOptions options_;
  size_t states_;
  bool moves_;
};

TEST_P(Update, AdamFollowsThePublishedAlgorithmOverItsRanges) {
  for (const bool decoupled : {true, false}) {
    for (const bool bias_correction : {true, false}) {
      Compared(options(), 2, true)
          .run(
              [&](const FlatShard& shard, const at::Tensor& scales, int64_t step,
                  const std::vector<UpdateRange>& ranges) {
                adam_update(shard, scales, {0.9, 0.95, 1e-8, decoupled, bias_correction, step},
                            ranges);
              },
              [&](Element& x, const UpdateRange& range, int64_t step) {
                x.w -= decoupled ? range.lr * range.weight_decay * x.w : 0.0;
                const double g = x.g + (decoupled ? 0.0 : range.weight_decay * x.w);
                x.s0 = 0.9 * x.s0 + 0.1 * g;
                x.s1 = 0.95 * x.s1 + 0.05 * g * g;
                const double m = bias_correction ? x.s0 / (1 - std::pow(0.9, step)) : x.s0;
                const double v = bias_correction ? x.s1 / (1 - std::pow(0.95, step)) : x.s1;
                x.w -= range.lr * m / (std::sqrt(v) + 1e-8);
              });
    }
  }
}

TEST_P(Update, AdagradFollowsThePublishedAlgorithm) {
  Compared(options(), 1, true)
      .run(
          [](const FlatShard& shard, const at::Tensor& scales, int64_t step,
             const std::vector<UpdateRange>& ranges) {
            adagrad_update(shard, scales, {1e-6, 0.5, step}, ranges);
          },
          [](Element& x, const UpdateRange& range, int64_t step) {
            const double g = x.g + range.weight_decay * x.w;
            x.s0 += g * g;
            x.w -= range.lr / (1 + 0.5 * (step - 1)) * g / (std::sqrt(x.s0) + 1e-6);
          });
}

TEST_P(Update, LionStepsByTheSignOfItsMean) {
  Compared(options(), 1, true)
      .run(
          [](const FlatShard& shard, const at::Tensor& scales, int64_t,
             const std::vector<UpdateRange>& ranges) {
            lion_update(shard, scales, {0.9, 0.99}, ranges);
          },
          [](Element& x, const UpdateRange& range, int64_t) {
            const double mean = 0.9 * x.s0 + 0.1 * x.g;
            x.w *= 1 - range.lr * range.weight_decay;
            x.w -= range.lr * (mean > 0 ? 1 : mean < 0 ? -1 : 0);
            x.s0 = 0.99 * x.s0 + 0.01 * x.g;
          });
}

TEST_P(Update, SgdFollowsItsMomentumNesterovAndDampening) {
  Compared(options(), 0, true)
      .run(
          [](const FlatShard& shard, const at::Tensor& scales, int64_t step,
             const std::vector<UpdateRange>& ranges) {
            sgd_update(shard, scales, {.step = step}, ranges);
          },
          [](Element& x, const UpdateRange& range, int64_t) {
            x.w -= range.lr * (x.g + range.weight_decay * x.w);
          });
  for (const bool nesterov : {false, true}) {
    const double dampening = nesterov ? 0.0 : 0.3;
    Compared(options(), 1, true)
        .run(
            [&](const FlatShard& shard, const at::Tensor& scales, int64_t step,
                const std::vector<UpdateRange>& ranges) {
              sgd_update(shard, scales, {0.8, dampening, nesterov, step}, ranges);
            },
            [&](Element& x, const UpdateRange& range, int64_t step) {
              const double g = x.g + range.weight_decay * x.w;
              x.s0 = step == 1 ? g : 0.8 * x.s0 + (1 - dampening) * g;
              x.w -= range.lr * (nesterov ? g + 0.8 * x.s0 : x.s0);
            });
  }
}

TEST_P(Update, LambsDirectionIsAdamsStepWithTheDecay) {
  for (const bool bias_correction : {true, false}) {
    Compared(options(), 2, false)
        .run(
            [&](const FlatShard& shard, const at::Tensor& scales, int64_t step,
                const std::vector<UpdateRange>& ranges) {
              lamb_direction(shard, scales,
                             {.beta2 = 0.95, .bias_correction = bias_correction, .step = step},
                             ranges);
            },
            [&](Element& x, const UpdateRange& range, int64_t step) {
              x.s0 = 0.9 * x.s0 + 0.1 * x.g;
              x.s1 = 0.95 * x.s1 + 0.05 * x.g * x.g;
              const double m = bias_correction ? x.s0 / (1 - std::pow(0.9, step)) : x.s0;
              const double v = bias_correction ? x.s1 / (1 - std::pow(0.95, step)) : x.s1;
              x.g = m / (std::sqrt(v) + 1e-8) + range.weight_decay * x.w;
            });
  }
}

TEST_P(Update, MuonsDirectionIsTheMeanOrTheMeanOneGradientOn) {
  for (const bool nesterov : {false, true}) {
    Compared(options(), 1, false)
        .run(
            [&](const FlatShard& shard, const at::Tensor& scales, int64_t,
                const std::vector<UpdateRange>& ranges) {
              muon_direction(shard, scales, {0.9, nesterov}, ranges);
            },
            [&](Element& x, const UpdateRange&, int64_t) {
              x.s0 = 0.9 * x.s0 + 0.1 * x.g;
              x.g = nesterov ? 0.9 * x.s0 + 0.1 * x.g : x.s0;
            });
  }
}

TEST_P(Update, ADirectionIsAppliedWithItsScaleRateAndDecay) {
  Compared(options(), 0, true)
      .run([](const FlatShard& shard, const at::Tensor& scales, int64_t,
              const std::vector<UpdateRange>& ranges) { apply_direction(shard, scales, ranges); },
           [](Element& x, const UpdateRange& range, int64_t) {
             x.w = x.w * (1 - range.lr * range.weight_decay) - range.lr * x.g;
           });
}

// In single precision 1 - 0.9999f is wrong in its fourth digit.
TEST_P(Update, ConstantsAreFoldedInDoublePrecision) {
  FlatShard shard{at::zeros({4}, fp32()), at::ones({4}, fp32()), {}, {}};
  shard.states = {at::zeros({4}, fp32()), at::zeros({4}, fp32())};
  adam_update(shard, at::ones({1}, fp32()), {.beta1 = 0.9999, .beta2 = 0.9999}, {{0, 4}});
  EXPECT_NEAR(shard.states[0][0].item<double>(), 1 - 0.9999, 1e-11);
  EXPECT_NEAR(shard.states[1][0].item<double>(), 1 - 0.9999, 1e-11);
}

TEST_P(Update, TheWeightMayBeTheMasterOrAbsent) {
  const at::Tensor one = at::ones({1}, fp32());
  const at::Tensor grad = at::randn({100}, at::kFloat).to(fp32());
  const auto fresh = [&] {
    return FlatShard{
        at::ones({100}, fp32()), grad, {}, {at::zeros({100}, fp32()), at::zeros({100}, fp32())}};
  };
  FlatShard with_itself = fresh();
  with_itself.weight = with_itself.master;
  const FlatShard without = fresh();
  adam_update(with_itself, one, {}, {{0, 100, 0.1}});
  adam_update(without, one, {}, {{0, 100, 0.1}});
  EXPECT_TRUE(at::equal(with_itself.master, without.master));
  adam_update(without, one, {}, {});
  EXPECT_TRUE(at::equal(with_itself.master, without.master));
}

TEST_P(Update, AViewAtAnyPlaceIsUpdatedAsTheWholeIs) {
  const at::Tensor master = at::ones({64}, fp32());
  const at::Tensor grad = at::randn({64}, at::kFloat).to(fp32());
  const at::Tensor weight = at::zeros({64}, options());
  const auto tail = [](const at::Tensor& x) { return x.narrow(0, 3, 50); };
  adam_update({tail(master),
               tail(grad),
               tail(weight),
               {tail(at::zeros({64}, fp32())), tail(at::zeros({64}, fp32()))}},
              at::ones({1}, fp32()), {}, {{0, 50}});
  // The first step moves each element by lr against the sign of its gradient.
  expect_close(tail(master), 1 - 1e-3 * fp64(tail(grad)).sign(), 1e-5);
  EXPECT_TRUE(at::equal(tail(weight), tail(master).to(options())));
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

TEST_P(Update, SumsOfRangesAreThoseOfTheirElements) {
  const at::Tensor x = at::randn({5000}, at::kFloat).to(fp32());
  std::vector<UpdateRange> ranges;
  for (int64_t i = 0; i < 70; ++i) {
    ranges.push_back({i * 60, i * 60 + i});
  }
  const at::Tensor sums = sum_squares(x, ranges);
  ASSERT_EQ(sums.numel(), 70);
  for (int64_t i = 0; i < 70; ++i) {
    EXPECT_NEAR(sums[i].item<double>(), fp64(x).narrow(0, i * 60, i).square().sum().item<double>(),
                1e-9);
  }
  EXPECT_EQ(sum_squares(x, {}).numel(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, Update, testing::ValuesIn(cases()), case_name);

TEST(UpdateRanges, ARangeOrAScaleOutsideTheTensorsIsRefused) {
  const at::Tensor x = at::zeros({4});
  const FlatShard shard{x, x.clone(), {}, {x.clone(), x.clone()}};
  EXPECT_THROW(adam_update(shard, at::ones({1}), {}, {{0, 5}}), StateError);
  EXPECT_THROW(adam_update(shard, at::ones({1}), {}, {{0, 4, 0.0, 1.0, 1}}), StateError);
  FlatShard short_grad = shard;
  short_grad.grad = at::zeros({3});
  EXPECT_THROW(adam_update(short_grad, at::ones({1}), {}, {}), StateError);
  FlatShard one_state = shard;
  one_state.states[1] = at::Tensor();
  EXPECT_THROW(adam_update(one_state, at::ones({1}), {}, {}), StateError);
  EXPECT_NO_THROW(lion_update(one_state, at::ones({1}), {}, {}));
}

}  // namespace
}  // namespace reknit::ops
