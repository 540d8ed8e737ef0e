// Counter-based random numbers: known answers and independence.
#include "reknit/base/random.h"

#include <gtest/gtest.h>

namespace reknit {
namespace {

// Known answers of Philox 4x32-10 published with Random123 (kat_vectors).
TEST(Philox, GivesThePublishedKnownAnswers) {
  uint32_t out[4];
  Philox{0}.block(0, 0, out);
  EXPECT_EQ(out[0], 0x6627e8d5u);
  EXPECT_EQ(out[1], 0xe169c58du);
  EXPECT_EQ(out[2], 0xbc57ac4cu);
  EXPECT_EQ(out[3], 0x9b00dbd8u);
  Philox{~0ull}.block(~0ull, ~0ull, out);
  EXPECT_EQ(out[0], 0x408f276du);
  EXPECT_EQ(out[1], 0x41c83b0eu);
  EXPECT_EQ(out[2], 0xa20bc7c6u);
  EXPECT_EQ(out[3], 0x6d5451fdu);
}

TEST(Philox, UniformNumbersLieInTheUnitIntervalAndAverageToOneHalf) {
  double sum = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    const double u = Philox{7}.uniform(i, 3);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / 20000, 0.5, 0.01);
}

TEST(Philox, NormalPairsHaveMeanZeroAndVarianceOne) {
  double sum = 0;
  double squares = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    for (const double x : normal_pair(Philox{11}, i, 0)) {
      sum += x;
      squares += x * x;
    }
  }
  EXPECT_NEAR(sum / 40000, 0.0, 0.02);
  EXPECT_NEAR(squares / 40000, 1.0, 0.03);
}

}  // namespace
}  // namespace reknit
