// Sampling: the sets that filters keep, frequencies, and independence of the batch.
#include "reknit/base/random.h"
#include "reknit/kernels/lm_head.h"

#include "tests/kernels/cases.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace reknit::ops {
namespace {

using Sample = OnDevices;

Sampled draw(const at::Tensor& logits, const SampleSettings& settings, int64_t first_key = 0,
             int64_t eos = -1, int64_t forbidden_until = 0) {
  const auto options = logits.options().dtype(at::kLong);
  const int64_t batch = logits.size(0);
  return sample(logits, settings, at::arange(first_key, first_key + batch, options),
                at::full({batch}, 5, options), at::full({batch}, forbidden_until, options), eos);
}

/// The columns that top_k, then top_p keep, by a full sort.
std::set<int64_t> kept_by_sort(const at::Tensor& row, const SampleSettings& settings) {
  const at::Tensor p = at::softmax(fp64(row) / settings.temperature, 0);
  std::vector<int64_t> order(row.numel());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<int64_t>(i);
  }
  const auto value = [&p](int64_t i) { return p.const_data_ptr<double>()[i]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return value(a) > value(b); });
  if (settings.top_k > 0 && settings.top_k < row.numel()) {
    order.resize(settings.top_k);
  }
  double total = 0;
  for (const int64_t i : order) {
    total += value(i);
  }
  std::set<int64_t> kept;
  double reached = 0;
  for (const int64_t i : order) {
    if (reached >= settings.top_p * total) {
      break;
    }
    kept.insert(i);
    reached += value(i);
  }
  return kept;
}

TEST_P(Sample, GreedyTakesTheFirstOfEqualMaxima) {
  const at::Tensor logits = at::randn({4, 1000}, at::kFloat);
  logits[1][77] = 9.0f;
  logits[1][500] = 9.0f;
  const Sampled result = draw(logits.to(GetParam()), {.temperature = 0});
  EXPECT_TRUE(at::equal(result.tokens.cpu().narrow(0, 2, 2), logits.argmax(1).narrow(0, 2, 2)));
  EXPECT_EQ(result.tokens[1].item<int64_t>(), 77);
}

TEST_P(Sample, LogpIsThatOfTheUnmodifiedDistribution) {
  const at::Tensor logits = at::randn({6, 300}, at::kFloat);
  const at::Tensor all = at::log_softmax(fp64(logits).narrow(1, 0, 290), 1);
  for (const SampleSettings& settings :
       {SampleSettings{.temperature = 0, .vocab = 290},
        SampleSettings{.temperature = 0.3, .top_k = 5, .top_p = 0.5, .vocab = 290}}) {
    const Sampled result = draw(logits.to(GetParam()), settings);
    expect_close(result.logp, all.gather(1, result.tokens.cpu().unsqueeze(1)).squeeze(1), 1e-5);
  }
}

TEST_P(Sample, FrequenciesFollowTheTemperedDistribution) {
  const int64_t draws = 20000;
  const at::Tensor row = at::randn({12}, at::kFloat);
  const at::Tensor logits = row.unsqueeze(0).expand({draws, 12}).contiguous().to(GetParam());
  for (const double temperature : {0.5, 1.0, 2.0}) {
    const at::Tensor p = at::softmax(fp64(row) / temperature, 0);
    const at::Tensor tokens = draw(logits, {.temperature = temperature}).tokens.cpu();
    const at::Tensor counts = at::bincount(tokens, {}, 12).to(at::kDouble);
    const at::Tensor expected = p * draws;
    const double chi2 = ((counts - expected).square() / expected).sum().item<double>();
    EXPECT_LT(chi2, 35.0) << "11 degrees of freedom at temperature " << temperature;
  }
}

TEST_P(Sample, FiltersKeepExactlyTheSetsOfAFullSort) {
  const int64_t draws = 6000;
  for (const SampleSettings& settings :
       {SampleSettings{.top_k = 7}, SampleSettings{.top_p = 0.6}, SampleSettings{.top_p = 1e-6},
        SampleSettings{.temperature = 1.5, .top_k = 20, .top_p = 0.7}, SampleSettings{.top_k = 1},
        SampleSettings{.top_k = 5000}}) {
    const at::Tensor row = at::randn({40}, at::kFloat) * 1.5;
    row[3] = row[8].item<float>();
    const at::Tensor tokens =
        draw(row.unsqueeze(0).expand({draws, 40}).contiguous().to(GetParam()), settings)
            .tokens.cpu();
    const std::set<int64_t> expected = kept_by_sort(row, settings);
    const at::Tensor p = at::softmax(fp64(row) / settings.temperature, 0);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < draws; ++i) {
      seen.insert(tokens[i].item<int64_t>());
    }
    for (const int64_t token : seen) {
      EXPECT_TRUE(expected.contains(token)) << token;
    }
    for (const int64_t token : expected) {
      EXPECT_TRUE(seen.contains(token) || p[token].item<double>() < 3e-3) << token;
    }
  }
}

TEST_P(Sample, EqualLogitsAreCutAtTheLowerColumns) {
  const at::Tensor logits = at::zeros({500, 3000}, at::kFloat).to(GetParam());
  EXPECT_LT(draw(logits, {.top_k = 4}).tokens.max().item<int64_t>(), 4);
  EXPECT_LT(draw(logits, {.top_p = 0.099}).tokens.max().item<int64_t>(), 298);
}

TEST_P(Sample, ATokenIsAFunctionOfItsRowKeyAndPositionOnly) {
  const at::Tensor logits = at::randn({8, 5000}, at::kFloat).to(GetParam());
  for (const SampleSettings& settings :
       {SampleSettings{}, SampleSettings{.top_k = 50}, SampleSettings{.top_p = 0.9},
        SampleSettings{.temperature = 0.7, .top_k = 200, .top_p = 0.8}}) {
    const Sampled all = draw(logits, settings, 100);
    for (int64_t b = 0; b < 8; ++b) {
      const Sampled one = draw(logits.narrow(0, b, 1), settings, 100 + b);
      EXPECT_TRUE(at::equal(one.tokens, all.tokens.narrow(0, b, 1)));
      EXPECT_TRUE(at::equal(one.logp, all.logp.narrow(0, b, 1)));
    }
  }
}

TEST_P(Sample, DevicesDrawTheSameTokensAsTheCpu) {
  const at::Tensor logits = at::randn({200, 5000}, at::kFloat) * 2;
  for (const SampleSettings& settings :
       {SampleSettings{}, SampleSettings{.top_k = 50}, SampleSettings{.top_p = 0.9},
        SampleSettings{.temperature = 0}}) {
    const at::Tensor expected = draw(logits, settings).tokens;
    const at::Tensor actual = draw(logits.to(GetParam()), settings).tokens.cpu();
    // A draw at the edge between two tokens may fall either way.
    EXPECT_GE((expected == actual).sum().item<int64_t>(), 198);
  }
}

TEST_P(Sample, DrawsByInversionOfTheKeyedUniformNumber) {
  const at::Tensor logits = at::randn({50, 20}, at::kFloat);
  const at::Tensor tokens = draw(logits.to(GetParam()), {}).tokens.cpu();
  const at::Tensor reached = at::softmax(fp64(logits), 1).cumsum(1);
  for (int64_t b = 0; b < 50; ++b) {
    const double u = Philox{static_cast<uint64_t>(b)}.uniform(5, 0);
    const int64_t token = tokens[b].item<int64_t>();
    EXPECT_GT(reached[b][token].item<double>() + 1e-5, u);
    EXPECT_TRUE(token == 0 || reached[b][token - 1].item<double>() - 1e-5 < u);
  }
}

TEST_P(Sample, EosCannotBeDrawnWhileItIsForbidden) {
  const at::Tensor logits = at::zeros({400, 3}, at::kFloat);
  logits.select(1, 1).fill_(8.0f);
  const at::Tensor on_device = logits.to(GetParam());
  for (const double temperature : {0.0, 1.0}) {
    const SampleSettings settings{.temperature = temperature};
    // The draws are made at position 5.
    EXPECT_EQ((draw(on_device, settings, 0, 1, 6).tokens == 1).sum().item<int64_t>(), 0);
    EXPECT_GT((draw(on_device, settings, 0, 1, 5).tokens == 1).sum().item<int64_t>(), 390);
  }
}

TEST_P(Sample, PaddedColumnsAreNeverDrawn) {
  const at::Tensor logits = at::zeros({400, 8}, at::kFloat);
  logits.narrow(1, 5, 3).fill_(50.0f);
  for (const SampleSettings& settings :
       {SampleSettings{.vocab = 5}, SampleSettings{.temperature = 0, .vocab = 5},
        SampleSettings{.top_p = 0.9, .vocab = 5}}) {
    EXPECT_LT(draw(logits.to(GetParam()), settings).tokens.max().item<int64_t>(), 5);
  }
}

TEST_P(Sample, ANaNInARowStaysVisibleInItsLogp) {
  const at::Tensor logits = at::randn({2, 100}, at::kFloat);
  logits[0][50] = std::numeric_limits<float>::quiet_NaN();
  const Sampled result = draw(logits.to(GetParam()), {.top_k = 5, .top_p = 0.9});
  EXPECT_TRUE(std::isnan(result.logp[0].item<float>()));
  EXPECT_FALSE(std::isnan(result.logp[1].item<float>()));
}

TEST_P(Sample, AnEmptyBatchDrawsNothing) {
  const at::Tensor logits = at::empty({0, 100}, at::kFloat).to(GetParam());
  EXPECT_EQ(draw(logits, {}).tokens.numel(), 0);
  EXPECT_EQ(draw(logits, {.temperature = 0}).tokens.numel(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, Sample, testing::ValuesIn(devices()), device_name);

}  // namespace
}  // namespace reknit::ops
