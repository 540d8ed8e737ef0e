// The loss scaler against its published rule.
#include "reknit/optim/loss_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reknit {
namespace {

using testing::ElementsAre;

std::vector<double> scales(LossScaler& scaler, const std::vector<bool>& overflows) {
  std::vector<double> scales;
  for (const bool overflow : overflows) {
    EXPECT_TRUE(scaler.update(overflow));
    scales.push_back(scaler.scale());
  }
  return scales;
}

TEST(LossScaler, FollowsTheRuleWithWindowAndHysteresis) {
  LossScaler scaler({.initial = 16, .window = 4, .hysteresis = 2, .minimum = 1});
  EXPECT_THAT(scales(scaler, {true, true, false, false, false, false, false, false, true, true}),
              ElementsAre(16, 8, 8, 8, 8, 8, 16, 16, 16, 8));
}

TEST(LossScaler, AnOverflowAtTheFloorEndsTheRun) {
  LossScaler scaler({.initial = 4, .window = 4, .hysteresis = 1, .minimum = 1});
  EXPECT_THAT(scales(scaler, {true, true}), ElementsAre(2, 1));
  EXPECT_FALSE(scaler.update(true));
}

TEST(LossScaler, AtTheFloorHysteresisIsSpentFirst) {
  LossScaler scaler({.initial = 2, .window = 4, .hysteresis = 3, .minimum = 2});
  EXPECT_THAT(scales(scaler, {true, true}), ElementsAre(2, 2));
  EXPECT_FALSE(scaler.update(true));
}

TEST(LossScaler, AFreshOneDoublesAtTheFirstStepAfterAWindow) {
  LossScaler scaler({.initial = 16, .window = 4, .hysteresis = 2});
  EXPECT_THAT(scales(scaler, std::vector<bool>(9, false)),
              ElementsAre(16, 16, 16, 16, 32, 32, 32, 32, 64));
}

TEST(LossScaler, TheFloorNeedNotBeAPowerOfTwo) {
  LossScaler scaler({.initial = 8, .window = 4, .hysteresis = 1, .minimum = 3});
  EXPECT_THAT(scales(scaler, {true, true}), ElementsAre(4, 3));
  EXPECT_FALSE(scaler.update(true));
}

TEST(LossScaler, AFixedScaleNeverMoves) {
  LossScaler scaler({.initial = 128, .window = 1, .hysteresis = 1, .dynamic = false});
  EXPECT_THAT(scales(scaler, {true, false, false, true}), ElementsAre(128, 128, 128, 128));
}

TEST(LossScaler, ConsecutiveHysteresisIsRefilledByEveryCleanStep) {
  LossScaler scaler(
      {.initial = 16, .window = 100, .hysteresis = 2, .consecutive_hysteresis = true});
  EXPECT_THAT(scales(scaler, {true, false, true, false, true, true}),
              ElementsAre(16, 16, 16, 16, 16, 8));
}

TEST(LossScaler, ARestoredScalerGoesOnAsIfNothingHadHappened) {
  const LossScalerSettings settings{.initial = 16, .window = 2, .hysteresis = 2};
  LossScaler one(settings);
  scales(one, {true, false, true, false});
  LossScaler two(settings);
  two.restore(one.state());
  const std::vector<bool> rest = {false, false, true, true, false, false, false};
  EXPECT_EQ(scales(one, rest), scales(two, rest));
  LossScaler fixed({.initial = 128, .dynamic = false});
  fixed.restore(one.state());
  EXPECT_EQ(fixed.scale(), 128);
}

}  // namespace
}  // namespace reknit
