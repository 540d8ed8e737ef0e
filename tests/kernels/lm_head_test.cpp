// Log-probabilities, entropies and their gradients against double precision.
#include "reknit/kernels/lm_head.h"

#include "tests/kernels/cases.h"

#include <cmath>
#include <limits>

namespace reknit::ops {
namespace {

using LmHead = OnCases;

at::Tensor log_softmax_fp64(const at::Tensor& hidden, const at::Tensor& table, int64_t vocab) {
  return at::log_softmax(at::mm(fp64(hidden), fp64(table).narrow(0, 0, vocab).t()), 1);
}

at::Tensor logp_fp64(const at::Tensor& hidden, const at::Tensor& table, const at::Tensor& targets,
                     int64_t vocab) {
  const at::Tensor target = targets.cpu();
  return log_softmax_fp64(hidden, table, vocab)
      .gather(1, target.clamp_min(0).unsqueeze(1))
      .squeeze(1)
      .masked_fill(target < 0, 0);
}

TEST_P(LmHead, LogprobsAndEntropiesMatchDoublePrecision) {
  const at::Tensor hidden = normal({9, 24});
  const at::Tensor table = normal({40, 24}, 0.3);
  const at::Tensor targets = integers(37, {9});
  targets[2] = -1;
  for (const bool with_entropy : {false, true}) {
    const TokenLogprobs result = token_logprobs(hidden, view(table), targets, 37, with_entropy);
    const at::Tensor all = log_softmax_fp64(hidden, table, 37);
    expect_close(result.logp, logp_fp64(hidden, table, targets, 37), bound());
    EXPECT_EQ(result.logp[2].item<float>(), 0.0f);
    const at::Tensor logits = at::mm(fp64(hidden), fp64(table).narrow(0, 0, 37).t());
    expect_close(result.lse, at::logsumexp(logits, 1), bound());
    EXPECT_EQ(result.entropy.defined(), with_entropy);
    if (with_entropy) {
      expect_close(result.entropy, -(all.exp() * all).sum(1), bound());
    }
  }
}

TEST_P(LmHead, BackwardMatchesCentralDifferencesAndSkipsTokensWithoutTarget) {
  const at::Tensor hidden = normal({5, 6});
  const at::Tensor table = normal({11, 6}, 0.5);
  const at::Tensor targets = integers(10, {5});
  targets[3] = -1;
  const at::Tensor d_logp = normal({5}).to(at::kFloat);
  const at::Tensor d_table = at::ones({11, 6}, options());
  const TokenLogprobs saved = token_logprobs(hidden, view(table), targets, 10, false);
  const at::Tensor d_hidden =
      token_logprobs_backward(d_logp, hidden, view(table), targets, saved, 10, d_table);
  const auto of_hidden = [&](const at::Tensor& x) { return logp_fp64(x, table, targets, 10); };
  const auto of_table = [&](const at::Tensor& x) { return logp_fp64(hidden, x, targets, 10); };
  expect_close(d_hidden, central_differences(of_hidden, hidden, d_logp), bound());
  expect_close(d_table, 1 + central_differences(of_table, table, d_logp), bound());
  EXPECT_EQ(d_hidden[3].abs().max().item<float>(), 0.0f);
  EXPECT_EQ(d_table[10].min().item<float>(), 1.0f);
  const at::Tensor frozen =
      token_logprobs_backward(d_logp, hidden, view(table), targets, saved, 10, {});
  EXPECT_TRUE(at::equal(frozen, d_hidden));
}

TEST_P(LmHead, LearningInOnePassGivesWhatForwardAndBackwardGive) {
  // 65,536 columns: a chunk is 128 rows.
  const at::Tensor hidden = normal({150, 8});
  const at::Tensor table = normal({65536, 8}, 0.5);
  const at::Tensor targets = integers(65000, {150});
  targets[3] = -1;
  const at::Tensor d_logp = normal({150}).to(at::kFloat);
  const at::Tensor d_table = at::ones({65536, 8}, options());
  const at::Tensor d_learned = at::ones({65536, 8}, options());
  const TokenLogprobs saved = token_logprobs(hidden, view(table), targets, 65530, false);
  const at::Tensor d_hidden =
      token_logprobs_backward(d_logp, hidden, view(table), targets, saved, 65530, d_table);
  const LearnedLogprobs learned =
      learn_token_logprobs(d_logp, hidden, view(table), targets, 65530, d_learned);
  EXPECT_TRUE(at::equal(learned.logprobs.logp, saved.logp));
  EXPECT_TRUE(at::equal(learned.logprobs.lse, saved.lse));
  EXPECT_TRUE(at::equal(learned.d_hidden, d_hidden));
  EXPECT_TRUE(at::equal(d_learned, d_table));
}

TEST_P(LmHead, ManyChunksGiveWhatOneRowAloneGives) {
  // 65,536 columns: a chunk is 128 rows.
  const at::Tensor hidden = normal({300, 8});
  const at::Tensor table = normal({65536, 8}, 0.5);
  const at::Tensor targets = integers(65536, {300});
  const TokenLogprobs all = token_logprobs(hidden, view(table), targets, 0, true);
  for (const int64_t row : {0, 127, 128, 299}) {
    const TokenLogprobs one =
        token_logprobs(hidden.narrow(0, row, 1), view(table), targets.narrow(0, row, 1), 0, true);
    expect_close(all.logp.narrow(0, row, 1), one.logp, bound());
    expect_close(all.entropy.narrow(0, row, 1), one.entropy, bound());
  }
}

TEST_P(LmHead, LogitsOfMinusInfinityAddNothingToTheEntropyAndNaNIsSeen) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto entropy_of = [&](std::vector<double> logits) {
    const at::Tensor hidden = at::ones({1, 1}, options());
    const at::Tensor table = at::tensor(logits, at::kDouble).unsqueeze(1).to(options());
    return token_logprobs(hidden, view(table), at::zeros({1}, int64()), 0, true)
        .entropy.item<double>();
  };
  EXPECT_NEAR(entropy_of({0.5, -inf, 0.5, -inf}), std::log(2.0), bound());
  EXPECT_NEAR(entropy_of({3.0, -inf}), 0.0, bound());
  EXPECT_TRUE(std::isnan(entropy_of({0.5, std::nan(""), 1.0, -inf})));
  EXPECT_TRUE(std::isnan(entropy_of({-inf, -inf})));
}

TEST_P(LmHead, NoTokensGiveNothing) {
  const at::Tensor table = normal({11, 6});
  const at::Tensor hidden = normal({0, 6});
  const at::Tensor targets = at::empty({0}, int64());
  const TokenLogprobs none = token_logprobs(hidden, view(table), targets, 0, true);
  EXPECT_EQ(none.logp.numel(), 0);
  EXPECT_EQ(token_logprobs_backward(none.logp, hidden, view(table), targets, none, 0,
                                    at::zeros_like(table))
                .sizes(),
            at::IntArrayRef({0, 6}));
}

TEST_P(LmHead, LogitsAreFp32ProductsOfAllRowsOfTheTable) {
  const at::Tensor hidden = normal({3, 24});
  const at::Tensor table = normal({40, 24});
  const at::Tensor result = logits(hidden, view(table));
  EXPECT_EQ(result.scalar_type(), at::kFloat);
  expect_close(result, at::mm(fp64(hidden), fp64(table).t()), bound());
}

INSTANTIATE_TEST_SUITE_P(All, LmHead, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace reknit::ops
