// The values that new models start with: the same wherever and by however many they are drawn.
#include "reknit/models/init_values.h"

#include "reknit/base/random.h"
#include "reknit/base/rank.h"
#include "tests/models/golden_case.h"

#include <gtest/gtest.h>

namespace reknit {
namespace {

at::Tensor first_table(int64_t rows) {
  ModelSpec spec = GoldenCase("gpt2").spec;
  const ParamSpec table{.name = "embed.tokens.weight", .shape = {rows, 65}};
  return init_values(spec, table, {.hf_name = "transformer.wte.weight", .row_end = rows}, 7);
}

TEST(InitValues, AreTheSameFromOneThreadAndFromTheWholeHost) {
  const at::Tensor by_host = first_table(8193);
  const RankScope one_of_many(3, 1 << 20, c10::kCPU);
  EXPECT_TRUE(at::equal(by_host, first_table(8193)));
}

TEST(InitValues, OfAPlaceDoNotDependOnTheSizeOfTheTensor) {
  EXPECT_TRUE(at::equal(first_table(8193).narrow(0, 0, 3), first_table(3)));
}

TEST(InitValues, OfALargeTensorHaveTheModelsDeviation) {
  const at::Tensor values = first_table(8193);
  EXPECT_NEAR(values.std().item<double>(), 0.02, 1e-4);
  EXPECT_NEAR(values.mean().item<double>(), 0.0, 1e-4);
}

}  // namespace
}  // namespace reknit
