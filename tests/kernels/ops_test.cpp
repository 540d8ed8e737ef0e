// Linear maps, norms, activations and embeddings against double precision.
#include "reknit/kernels/ops.h"

#include "tests/kernels/cases.h"

#include <cmath>
#include <numbers>

namespace reknit::ops {
namespace {

using Ops = OnCases;

TEST_P(Ops, LinearIsTheProductPlusTheBias) {
  const at::Tensor x = normal({5, 24});
  const at::Tensor weight = normal({16, 24});
  const at::Tensor bias = normal({16});
  const at::Tensor product = at::mm(fp64(x), fp64(weight).t());
  expect_close(linear(x, view(weight), view(bias)), product + fp64(bias), bound());
  expect_close(linear(x, view(weight), {}), product, bound());
}

TEST_P(Ops, LinearBackwardAddsToWhatTheGradientsHold) {
  const at::Tensor x = normal({7, 24});
  const at::Tensor dy = normal({7, 16});
  const at::Tensor weight = normal({16, 24});
  const at::Tensor d_weight = normal({16, 24});
  const at::Tensor d_bias = normal({16});
  const at::Tensor weight_before = fp64(d_weight).clone();
  const at::Tensor bias_before = fp64(d_bias).clone();
  const at::Tensor dx = linear_backward(dy, x, view(weight), d_weight, d_bias);
  expect_close(dx, at::mm(fp64(dy), fp64(weight)), bound());
  expect_close(d_weight, weight_before + at::mm(fp64(dy).t(), fp64(x)), bound());
  expect_close(d_bias, bias_before + fp64(dy).sum(0), bound());
}

TEST_P(Ops, EmptyInputsGiveEmptyResultsAndLeaveGradientsAlone) {
  const at::Tensor weight = normal({16, 24});
  const at::Tensor d_weight = at::ones({16, 24}, options());
  const at::Tensor d_bias = at::ones({16}, options());
  const at::Tensor d_norm = at::ones({24}, options());
  const at::Tensor x = normal({0, 24});
  const at::Tensor ids = at::empty({0}, int64());
  EXPECT_EQ(linear(x, view(weight), view(d_bias)).sizes(), at::IntArrayRef({0, 16}));
  EXPECT_EQ(linear_backward(normal({0, 16}), x, view(weight), d_weight, d_bias).sizes(),
            at::IntArrayRef({0, 24}));
  EXPECT_EQ(activation(x, Activation::kGelu).numel(), 0);
  const Normed normed = layer_norm(x, view(d_norm), view(d_norm), 1e-5);
  EXPECT_EQ(normed.y.sizes(), at::IntArrayRef({0, 24}));
  EXPECT_EQ(layer_norm_backward(x, x, normed, view(d_norm), d_norm, d_norm).numel(), 0);
  EXPECT_EQ(embedding(ids, view(weight)).sizes(), at::IntArrayRef({0, 24}));
  embedding_backward(x, ids, d_weight);
  EXPECT_TRUE(at::equal(d_weight, at::ones_like(d_weight)));
  EXPECT_TRUE(at::equal(d_bias, at::ones_like(d_bias)));
  EXPECT_TRUE(at::equal(d_norm, at::ones_like(d_norm)));
}

double by_hand(Activation kind, double x) {
  switch (kind) {
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kGelu:
      return x * 0.5 * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::kGeluTanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
  }
  return 0;
}

at::Tensor activation_fp64(Activation kind, const at::Tensor& x) {
  at::Tensor y = fp64(x).clone(at::MemoryFormat::Contiguous);
  for (int64_t i = 0; i < y.numel(); ++i) {
    double& value = y.mutable_data_ptr<double>()[i];
    value = by_hand(kind, value);
  }
  return y;
}

TEST_P(Ops, ActivationsAndTheirSlopesMatchTheFormulas) {
  for (const Activation kind :
       {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
    const at::Tensor x = normal({3, 17}, 2.0);
    const at::Tensor dy = normal({3, 17});
    const auto f = [kind](const at::Tensor& at_x) { return activation_fp64(kind, at_x); };
    expect_close(activation(x, kind), f(x), bound());
    expect_close(activation_backward(dy, x, kind), central_differences(f, x, dy), bound());
  }
}

at::Tensor layer_norm_fp64(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor centered = fp64(x) - fp64(x).mean(1, true);
  const at::Tensor y = centered / (centered.square().mean(1, true) + 1e-5).sqrt();
  return (weight.defined() ? y * fp64(weight) : y) + (bias.defined() ? fp64(bias) : at::zeros({}));
}

TEST_P(Ops, LayerNormAndItsBackwardMatchDoublePrecision) {
  for (const int64_t width : {8, 33, 80, 1024}) {
    const at::Tensor x = normal({4, width}).add_(3.0);
    const at::Tensor weight = normal({width});
    const at::Tensor bias = normal({width});
    const at::Tensor dy = normal({4, width});
    const Normed normed = layer_norm(x, view(weight), view(bias), 1e-5);
    expect_close(normed.y, layer_norm_fp64(x, weight, bias), bound());
    EXPECT_EQ(normed.mean.scalar_type(), at::kFloat);
    expect_close(normed.mean, fp64(x).mean(1), 1e-5);
    if (width > 100) {
      continue;
    }
    const at::Tensor d_weight = at::ones({width}, options());
    const at::Tensor d_bias = at::ones({width}, options());
    const at::Tensor dx = layer_norm_backward(dy, x, normed, view(weight), d_weight, d_bias);
    const auto of_x = [&](const at::Tensor& v) { return layer_norm_fp64(v, weight, bias); };
    const auto of_weight = [&](const at::Tensor& v) { return layer_norm_fp64(x, v, bias); };
    expect_close(dx, central_differences(of_x, x, dy), bound());
    expect_close(d_weight, 1 + central_differences(of_weight, weight, dy), bound());
    expect_close(d_bias, 1 + fp64(dy).sum(0), bound());
  }
}

TEST_P(Ops, LayerNormWorksWithoutWeightAndBias) {
  const at::Tensor x = normal({4, 40});
  const at::Tensor dy = normal({4, 40});
  const Normed normed = layer_norm(x, {}, {}, 1e-5);
  const auto of_x = [&](const at::Tensor& v) { return layer_norm_fp64(v, {}, {}); };
  expect_close(normed.y, of_x(x), bound());
  expect_close(layer_norm_backward(dy, x, normed, {}, {}, {}), central_differences(of_x, x, dy),
               bound());
}

TEST_P(Ops, LayerNormSumsManyRowsIntoItsGradients) {
  const at::Tensor x = normal({700, 64});
  const at::Tensor dy = normal({700, 64});
  const at::Tensor weight = normal({64});
  const at::Tensor d_weight = at::zeros({64}, options());
  const at::Tensor d_bias = at::zeros({64}, options());
  const Normed normed = layer_norm(x, view(weight), view(weight), 1e-5);
  layer_norm_backward(dy, x, normed, view(weight), d_weight, d_bias);
  const at::Tensor normalised = layer_norm_fp64(x, {}, {});
  expect_close(d_weight, (normalised * fp64(dy)).sum(0), bound());
  expect_close(d_bias, fp64(dy).sum(0), bound());
}

TEST_P(Ops, LayerNormOfManyRowsAddsTheGradientPastIt) {
  for (const int64_t width : {44, 520, 2048, 2304}) {
    const int64_t rows = 530;
    const at::Tensor x = normal({rows, width}).add_(1.0);
    const at::Tensor dy = normal({rows, width});
    const at::Tensor past = normal({rows, width});
    const at::Tensor weight = normal({width});
    const at::Tensor bias = normal({width});
    const at::Tensor d_weight = at::zeros({width}, options());
    const at::Tensor d_bias = at::zeros({width}, options());
    const Normed normed = layer_norm(x, view(weight), view(bias), 1e-5);
    const auto [y, mean, rstd] =
        at::native_layer_norm(fp64(x), {width}, fp64(weight), fp64(bias), 1e-5);
    const auto [dx, d_w, d_b] = at::native_layer_norm_backward(
        fp64(dy), fp64(x), {width}, mean, rstd, fp64(weight), fp64(bias), {true, true, true});
    expect_close(normed.y, y, bound());
    expect_close(layer_norm_backward(dy, x, normed, view(weight), d_weight, d_bias, past),
                 dx + fp64(past), bound());
    expect_close(d_weight, d_w, bound());
    expect_close(d_bias, d_b, bound());
  }
}

TEST_P(Ops, ActivationBackwardWithABiasIsTheSlopeAndItsSums) {
  for (const int64_t width : {5, 264}) {
    for (const Activation kind :
         {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
      const at::Tensor x = normal({300, width});
      const at::Tensor dy = normal({300, width});
      const at::Tensor d_bias = at::ones({width}, options());
      const at::Tensor expected = activation_backward(fp64(dy), fp64(x), kind);
      expect_close(activation_backward(dy.clone(), x, kind, d_bias), expected, bound());
      expect_close(d_bias, 1 + expected.sum(0), bound());
    }
  }
}

TEST_P(Ops, LinearAddOfManyRowsIsProductBiasAndResidual) {
  for (const int64_t out : {9, 2048}) {
    const at::Tensor x = normal({70, 40});
    const at::Tensor weight = normal({out, 40}, 0.2);
    const at::Tensor bias = normal({out});
    const at::Tensor residual = normal({70, out});
    const at::Tensor product = at::mm(fp64(x), fp64(weight).t()) + fp64(residual);
    expect_close(linear_add(x, view(weight), view(bias), residual), product + fp64(bias), bound());
    expect_close(linear_add(x, view(weight), {}, residual), product, bound());
  }
}

TEST_P(Ops, EmbeddingPicksRowsAndItsBackwardAddsThemUp) {
  const at::Tensor table = normal({11, 20});
  const at::Tensor ids = integers(11, {300});
  const at::Tensor dy = normal({300, 20});
  EXPECT_TRUE(at::equal(embedding(ids, view(table)), table.index({ids})));
  const at::Tensor d_table = normal({11, 20});
  const at::Tensor expected = fp64(d_table).clone();
  for (int64_t i = 0; i < 300; ++i) {
    expected[ids[i].item<int64_t>()].add_(fp64(dy[i]));
  }
  embedding_backward(dy, ids, d_table);
  expect_close(d_table, expected, bound());
}

TEST_P(Ops, AConstantRowOfAnEmbeddingGetsNoGradientAndTheOthersTheirs) {
  const at::Tensor ids = integers(5, {300});
  const at::Tensor dy = normal({300, 20});
  const at::Tensor plain = at::zeros({5, 20}, options());
  const at::Tensor d_table = at::zeros({5, 20}, options());
  embedding_backward(dy, ids, plain);
  ASSERT_GT(plain[1].abs().sum().item<double>(), 0);
  embedding_backward(dy, ids, d_table, /*constant_row=*/1);
  plain[1].zero_();
  EXPECT_TRUE(at::equal(d_table, plain));
}

TEST_P(Ops, GradientsAreTheSameBitsEveryTime) {
  const at::Tensor ids = integers(5, {400});
  const at::Tensor x = normal({400, 96});
  const at::Tensor dy = normal({400, 96});
  const at::Tensor weight = normal({96});
  const Normed normed = layer_norm(x, view(weight), view(weight), 1e-5);
  std::vector<at::Tensor> first;
  for (int run = 0; run < 3; ++run) {
    const at::Tensor d_weight = at::zeros({96}, options());
    const at::Tensor d_bias = at::zeros({96}, options());
    const at::Tensor d_table = at::zeros({5, 96}, options());
    const at::Tensor dx = layer_norm_backward(dy, x, normed, view(weight), d_weight, d_bias);
    embedding_backward(dy, ids, d_table);
    const std::vector<at::Tensor> now = {d_weight, d_bias, d_table, dx};
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(at::equal(first[i], now[i])) << i;
    }
    first = now;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Ops, testing::ValuesIn(cases()), case_name);

struct NeverReadable : ReadGuard {
  void require_readable(const std::string& parameter, uint64_t, uint64_t) const override {
    throw StateError(parameter + " is released");
  }
};

TEST(OpsState, AParameterThatIsNotFullIsRefused) {
  const std::string name = "layers.3.fc1.weight";
  const ParamView weight(&name, at::ones({4, 4}), std::make_shared<NeverReadable>(), 0, 0);
  EXPECT_THROW(linear(at::ones({2, 4}), weight, {}), StateError);
  EXPECT_THROW(layer_norm(at::ones({2, 4}), weight, {}, 1e-5), StateError);
  EXPECT_THROW(embedding(at::zeros({2}, at::kLong), weight), StateError);
}

TEST(OpsState, ATokenOutsideTheTableIsRefused) {
  const at::Tensor ids = at::full({1}, 9, at::kLong);
  EXPECT_THROW(embedding_backward(at::ones({1, 4}), ids, at::zeros({4, 4})), StateError);
}

}  // namespace
}  // namespace reknit::ops
