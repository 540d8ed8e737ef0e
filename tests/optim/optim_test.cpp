// Loss scaler, schedules and AdamW against their published rules.
#include "reknit/optim/adamw.h"
#include "reknit/optim/loss_scaler.h"
#include "reknit/optim/schedule.h"

#include "reknit/base/error.h"
#include "tests/support/golden.h"
#include "tests/support/toy_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <numbers>

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
}

nlohmann::json golden() {
  std::ifstream file(golden_folder("optimizers") / "optimizers.json");
  return nlohmann::json::parse(file);
}

TEST(Schedule, PlainKindsGiveTheRatesOfTransformers) {
  for (const auto& wanted : golden()["schedules"]) {
    const Schedule schedule{.kind = Schedule::parse(wanted["name"].get<std::string>()),
                            .warmup = wanted["warmup"],
                            .total = wanted["total"]};
    for (size_t i = 0; i < wanted["rates"].size(); ++i) {
      EXPECT_NEAR(schedule.at(static_cast<int64_t>(i), 0.5), wanted["rates"][i].get<double>(), 1e-9)
          << wanted["name"] << " warm-up " << wanted["warmup"] << " at " << i;
    }
  }
}

TEST(Schedule, LogarithmicWarmupOfFourPeaksAsDeepSpeedsDoes) {
  const Schedule schedule{.kind = ScheduleKind::kWarmup, .warmup = 4, .max_lr = 1e-3};
  const double expected[] = {0, 5.0e-4, 7.92e-4, 1e-3, 1e-3};
  for (int i = 0; i < 5; ++i) {
    EXPECT_NEAR(schedule.at(i, 7.0), expected[i], 1e-6) << i;
  }
}

TEST(Schedule, WarmupLRGoesFromLowestToHighestRate) {
  const Schedule linear{
      .kind = ScheduleKind::kWarmup, .warmup = 4, .min_lr = 1, .max_lr = 5, .log_warmup = false};
  for (int i = 0; i < 8; ++i) {
    EXPECT_DOUBLE_EQ(linear.at(i, 9.0), std::min(5.0, 1.0 + i)) << i;
  }
  const Schedule own_rate{.kind = ScheduleKind::kWarmup, .warmup = 1};
  EXPECT_DOUBLE_EQ(own_rate.at(0, 3.0), 0.0);  // at least two steps of warm-up
  EXPECT_DOUBLE_EQ(own_rate.at(2, 3.0), 3.0);
}

TEST(Schedule, WarmupDecayLRFallsToItsLowestRateAtTheEnd) {
  const Schedule schedule{.kind = ScheduleKind::kWarmupDecay,
                          .warmup = 2,
                          .total = 10,
                          .max_lr = 8,
                          .log_warmup = false};
  for (int i = 2; i < 14; ++i) {
    EXPECT_DOUBLE_EQ(schedule.at(i, 1.0), 8 * std::max(0.0, (10.0 - i) / 8)) << i;
  }
}

TEST(Schedule, WarmupCosineLRIsClampedAtItsEnd) {
  const Schedule schedule{.kind = ScheduleKind::kWarmupCosine,
                          .warmup = 2,
                          .total = 10,
                          .log_warmup = false,
                          .warmup_min_ratio = 0.5,
                          .cos_min_ratio = 0.1};
  EXPECT_DOUBLE_EQ(schedule.at(0, 2.0), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(1, 2.0), 1.5);
  for (int i = 2; i < 13; ++i) {
    const double progress = std::min(1.0, (i - 2 + 1) / 8.0);
    const double cosine = (1 + std::cos(std::numbers::pi * progress)) / 2;
    EXPECT_NEAR(schedule.at(i, 2.0), 2.0 * (0.1 + 0.9 * cosine), 1e-12) << i;
  }
  EXPECT_NEAR(schedule.at(100, 2.0), 0.2, 1e-12);
}

TEST(Schedule, AnUnknownNameIsRefusedWithTheKnownOnes) {
  try {
    Schedule::parse("cosinus");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cosinus"));
    EXPECT_THAT(error.help(), testing::HasSubstr("WarmupDecayLR"));
  }
}

// The same four updates, on one rank and on shards of two.
TEST(AdamW, WeightsEqualTorchsForDecoupledDecayAndForL2) {
  for (const auto& wanted : golden()["optimizers"]) {
    for (const int world : {1, 2}) {
      testing_support::on_ranks(world, [&](std::shared_ptr<Communicator> comm) {
        SlotPool pool(testing_support::rank_memory);
        Store store({.name = "toy", .placement = {3, world}, .allocator = {}},
                    StoreComms::over(comm, world), pool);
        store.add({"g", {{.name = "w", .shape = {5}}}});
        store.seal();
        pool.seal();
        store.write(0, 0, 0, at::linspace(-1, 1, 5, at::kFloat));
        AdamW adam(
            store,
            {.beta2 = 0.95, .weight_decay = wanted["decay"], .decoupled = wanted["decoupled"]});
        for (int step = 0; step < 4; ++step) {
          {
            const Full weights = store.full(0, Phase::kBackward);
            Gradients grads = store.gradients(0);
            grads[0].copy_((at::cos(at::arange(5, at::kFloat) + step) + weights[0].read() * 0.5) /
                           world);
            store.reduce(std::move(grads));
          }
          store.finish_gradients();
          adam.update(store.begin_update(), 0.05, at::ones({1}));
          store.end_update();
          const auto expected = wanted["weights"][step].get<std::vector<float>>();
          EXPECT_TRUE(at::allclose(store.read_full(0, 0), at::tensor(expected), 1e-5, 1e-6))
              << wanted["decoupled"] << " decay " << wanted["decay"] << " step " << step;
        }
        EXPECT_EQ(adam.step(), 4);
      });
    }
  }
}

}  // namespace
}  // namespace reknit
