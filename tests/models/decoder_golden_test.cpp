// Decoders against transformers: log-probabilities, values, gradients, generation.
#include "tests/models/golden_case.h"
#include "tests/support/plain_cache.h"

#include <gtest/gtest.h>

namespace reknit {
namespace {

class DecoderGolden : public testing::TestWithParam<std::tuple<std::string, c10::Device>> {
 protected:
  const std::string& name() const { return std::get<0>(GetParam()); }
  c10::Device device() const { return std::get<1>(GetParam()); }
};

std::string test_name(const testing::TestParamInfo<DecoderGolden::ParamType>& info) {
  std::string name = std::get<0>(info.param) + "_" +
                     c10::DeviceTypeName(std::get<1>(info.param).type(), /*lower_case=*/true);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// Every element within 1e-5 (fp32_tolerance) of the parameter's norm (of a thousandth of its
/// group's norm where the parameter's own gradient is next to nothing).
void expect_gradients(const PlainSource& params, const PerParam& expected) {
  for (size_t g = 0; g < expected.size(); ++g) {
    double group_square = 0;
    for (const at::Tensor& gradient : expected[g]) {
      group_square += std::pow(gradient.norm().item<double>(), 2);
    }
    for (size_t p = 0; p < expected[g].size(); ++p) {
      const at::Tensor actual = params.gradient(static_cast<GroupId>(g), static_cast<int>(p));
      const double scale =
          std::max(expected[g][p].norm().item<double>(), 1e-3 * std::sqrt(group_square));
      EXPECT_GT(scale, 0);
      EXPECT_LE(max_difference(actual, expected[g][p]), fp32_tolerance(actual.device()) * scale)
          << params.groups()[g].params[p].name;
    }
  }
}

TEST_P(DecoderGolden, LogprobsEntropyAndEveryGradientAreThoseOfTransformers) {
  const GoldenCase c(name());
  const Decoder decoder(c.spec);
  PlainSource params(decoder.groups(), at::kFloat, device());
  c.fill(params);
  const at::Tensor targets = c.golden.at("targets").to(device());
  std::shared_ptr<Saved> saved;
  const ops::TokenLogprobs out =
      decoder.logprobs(params, c.batch(device()), targets, Phase::kForward, true, &saved);
  EXPECT_LE(max_difference(out.logp, c.golden.at("logp")), fp32_tolerance(device()));
  const at::Tensor real = c.golden.at("targets") >= 0;
  EXPECT_LE(max_difference(out.entropy.cpu().index({real}), c.golden.at("entropy").index({real})),
            fp32_tolerance(device()));

  decoder.logprobs_backward(params, std::move(saved), c.golden.at("weights").to(device()));
  expect_gradients(params, assemble(params.groups(), c.spec, c.with_prefix("grad.")));
}

TEST_P(DecoderGolden, ValuesAndTheirGradientsAreThoseOfTransformers) {
  const GoldenCase c(name(), /*value_head=*/true);
  const Decoder decoder(c.spec);
  PlainSource params(decoder.groups(), at::kFloat, device());
  c.fill(params);
  std::shared_ptr<Saved> saved;
  const at::Tensor values = decoder.values(params, c.batch(device()), Phase::kForward, &saved);
  EXPECT_LE(max_difference(values, c.golden.at("values")), fp32_tolerance(device()));

  decoder.values_backward(params, std::move(saved), c.golden.at("value_weights").to(device()));
  expect_gradients(params, assemble(params.groups(), c.spec, c.with_prefix("value_grad.")));
}

TEST_P(DecoderGolden, GreedyGenerationIsThatOfTransformersTokenForToken) {
  const GoldenCase c(name());
  const Decoder decoder(c.spec);
  PlainSource params(decoder.groups(), at::kFloat, device());
  c.fill(params);
  PlainCache cache(c.spec, {3, 0, 4, 1}, 5, 24, at::kFloat, device());
  at::Tensor logits = decoder.prefill(params, c.batch(device()), cache);
  cache.set_lengths(c.lengths);
  std::vector<at::Tensor> generated;
  const at::Tensor expected = c.golden.at("generated");
  for (int64_t step = 0; step < expected.size(1); ++step) {
    generated.push_back(logits.argmax(1));
    logits = decoder.decode(params, generated.back(), cache);
    cache.advance();
  }
  EXPECT_TRUE(at::equal(at::stack(generated, 1).cpu(), expected))
      << at::stack(generated, 1) << expected;
}

INSTANTIATE_TEST_SUITE_P(Cases, DecoderGolden,
                         testing::Combine(testing::ValuesIn(kGoldenCases),
                                          testing::ValuesIn(testing_support::test_devices())),
                         test_name);

}  // namespace
}  // namespace reknit
