// The batch triple.
#include "reknit/config/batch.h"

#include <gmock/gmock.h>

namespace reknit {
namespace {

using testing::HasSubstr;
using Value = std::optional<int64_t>;
constexpr std::nullopt_t none = std::nullopt;

struct Result {
  BatchSizes sizes;
  Findings findings;
};

Result solve(Value B, Value m, Value g, int64_t ranks) {
  BatchRequest request{B, m, g, "ds.json", "ds.json", "ds.json"};
  Result result;
  result.sizes = solve_batch(request, ranks, "--ranks", result.findings);
  return result;
}

void expect_sizes(const Result& result, int64_t B, int64_t m, int64_t g) {
  EXPECT_TRUE(result.findings.empty());
  EXPECT_EQ(result.sizes.global, B);
  EXPECT_EQ(result.sizes.micro, m);
  EXPECT_EQ(result.sizes.accumulation, g);
}

TEST(Batch, WhatIsMissingIsDerived) {
  expect_sizes(solve(16, 2, none, 4), 16, 2, 2);
  expect_sizes(solve(none, 3, none, 4), 12, 3, 1);
  expect_sizes(solve(16, none, 2, 4), 16, 2, 2);
  expect_sizes(solve(none, 2, 3, 4), 24, 2, 3);
  expect_sizes(solve(16, none, none, 4), 16, 4, 1);
  expect_sizes(solve(24, 2, 3, 4), 24, 2, 3);
}

TEST(Batch, WhatDoesNotComeOutWholeIsAnErrorAndNotRounded) {
  EXPECT_EQ(solve(10, 2, none, 2).findings.size(), 1u);
  EXPECT_EQ(solve(10, none, none, 4).findings.size(), 1u);
  EXPECT_EQ(solve(10, none, 3, 2).findings.size(), 1u);
  EXPECT_EQ(solve(24, 2, 3, 5).findings.size(), 1u);
  EXPECT_EQ(solve(10, 2, none, 2).sizes.accumulation, 0);
}

TEST(Batch, AccumulationAloneOrNothingIsAnError) {
  EXPECT_THAT(solve(none, none, 4, 2).findings.at(0).text, HasSubstr("no batch size is given"));
  EXPECT_EQ(solve(none, none, none, 2).findings.size(), 1u);
}

TEST(Batch, TheErrorStatesAllFourNumbersAndTheirSources) {
  const Findings findings = solve(8, 1536, none, 8).findings;
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].text, HasSubstr("train_batch_size B = 8 (ds.json)"));
  EXPECT_THAT(findings[0].text, HasSubstr("train_micro_batch_size_per_gpu m = 1536 (ds.json)"));
  EXPECT_THAT(findings[0].text, HasSubstr("gradient_accumulation_steps g not given"));
  EXPECT_THAT(findings[0].text, HasSubstr("ranks W = 8 (--ranks)"));
  EXPECT_THAT(findings[0].text, HasSubstr("m * W = 12288"));
}

TEST(Batch, ExchangedSizesAreRecognised) {
  EXPECT_THAT(solve(8, 1536, none, 8).findings.at(0).help,
              HasSubstr("look exchanged: train_batch_size 1536 with "
                        "train_micro_batch_size_per_gpu 8 gives gradient_accumulation_steps 24"));
}

TEST(Batch, SizesBelowOneAreErrorsThatNameTheKey) {
  EXPECT_EQ(solve(0, none, none, 2).findings.at(0).path, "train_batch_size");
  EXPECT_EQ(solve(8, -1, none, 2).findings.at(0).path, "train_micro_batch_size_per_gpu");
}

TEST(Batch, ProductsBeyond64BitsAreErrors) {
  EXPECT_EQ(solve(none, INT64_MAX / 2, 3, 4).findings.size(), 1u);
  EXPECT_EQ(solve(7, INT64_MAX / 2, none, 4).findings.size(), 1u);
}

}  // namespace
}  // namespace reknit
