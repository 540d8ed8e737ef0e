// Every schedule against a table: of transformers, of a plain formula, or of published values.
#include "reknit/optim/schedule.h"

#include "reknit/base/error.h"
#include "reknit/optim/configured.h"
#include "tests/support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <numbers>

namespace reknit {
namespace {

using testing::HasSubstr;

/// The rates of the first updates.
void expect_rates(const Schedule& schedule, double lr, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(schedule.at(static_cast<int64_t>(i), lr), expected[i], 1e-12) << "update " << i;
  }
}

TEST(Schedule, PlainKindsGiveTheRatesOfTransformers) {
  std::ifstream file(golden_folder("optimizers") / "optimizers.json");
  for (const auto& wanted : nlohmann::json::parse(file)["schedules"]) {
    const Schedule schedule{.kind = Schedule::parse(wanted["name"].get<std::string>()),
                            .warmup = wanted["warmup"],
                            .total = wanted["total"]};
    for (size_t i = 0; i < wanted["rates"].size(); ++i) {
      EXPECT_NEAR(schedule.at(static_cast<int64_t>(i), 0.5), wanted["rates"][i].get<double>(), 1e-9)
          << wanted["name"] << " warm-up " << wanted["warmup"] << " at " << i;
    }
  }
}

// DeepSpeed's engine advances a schedule after each update, and a warm-up begins with that:
// the first update runs at min_lr, and so does the second one.
TEST(Schedule, WarmupLRStartsAfterTheFirstUpdate) {
  const Schedule logarithmic{.kind = ScheduleKind::kWarmup, .warmup = 4, .max_lr = 1e-3};
  expect_rates(
      logarithmic, 7.0,
      {0, 0, 1e-3 * std::log(2) / std::log(4), 1e-3 * std::log(3) / std::log(4), 1e-3, 1e-3});
  EXPECT_NEAR(logarithmic.at(3, 7.0), 7.92e-4, 1e-6);
  const Schedule linear{
      .kind = ScheduleKind::kWarmup, .warmup = 4, .min_lr = 1, .max_lr = 5, .log_warmup = false};
  expect_rates(linear, 9.0, {1, 1, 2, 3, 4, 5, 5, 5});
  const Schedule own_rate{.kind = ScheduleKind::kWarmup, .warmup = 1};
  expect_rates(own_rate, 3.0, {0, 0, 3, 3});  // at least two steps of warm-up
}

TEST(Schedule, WarmupDecayLRFallsToItsLowestRateAtTheEnd) {
  const Schedule schedule{.kind = ScheduleKind::kWarmupDecay,
                          .warmup = 2,
                          .total = 10,
                          .max_lr = 8,
                          .log_warmup = false};
  expect_rates(schedule, 1.0, {0, 0, 4, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0});
}

TEST(Schedule, WarmupCosineLRIsClampedAtItsEnd) {
  const Schedule schedule{.kind = ScheduleKind::kWarmupCosine,
                          .warmup = 2,
                          .total = 10,
                          .log_warmup = false,
                          .warmup_min_ratio = 0.5,
                          .cos_min_ratio = 0.1};
  expect_rates(schedule, 2.0, {0, 1, 1.5});
  for (int i = 3; i < 14; ++i) {
    const double progress = std::min(1.0, (i - 2) / 8.0);
    const double cosine = (1 + std::cos(std::numbers::pi * progress)) / 2;
    EXPECT_NEAR(schedule.at(i, 2.0), 2.0 * (0.1 + 0.9 * cosine), 1e-12) << i;
  }
  EXPECT_NEAR(schedule.at(100, 2.0), 0.2, 1e-12);
}

Schedule one_cycle(OneCycle cycle) {
  return {.kind = ScheduleKind::kOneCycle, .min_lr = 1, .max_lr = 5, .cycle = cycle};
}

TEST(Schedule, OneCycleGoesUpAndDownAndDecays) {
  const Schedule schedule = one_cycle({.first_steps = 4,
                                       .second_steps = 8,
                                       .decay_steps = 2,
                                       .decay_lr_rate = 0.5,
                                       .decay_momentum_rate = 0.05});
  expect_rates(schedule, 9.0,
               {1, 2, 3, 4, 5, 4.5, 4, 3.5, 3, 2.5, 2, 1.5, 1, 1 / 1.25, 1 / 1.5, 1 / 1.75});
  const std::vector<double> momenta = {.8,  .875,  .85,  .825,  .8, .8125,      .825,     .8375,
                                       .85, .8625, .875, .8875, .9, .9 * 1.025, .9 * 1.05};
  for (size_t i = 0; i < momenta.size(); ++i) {
    const auto betas = schedule.betas(static_cast<int64_t>(i));
    ASSERT_TRUE(betas);
    EXPECT_NEAR(betas->beta1, momenta[i], 1e-12) << i;
    EXPECT_EQ(betas->beta2, 0.99);
  }
  EXPECT_THROW(schedule.betas(18), UsageError);  // 0.9 * 1.15
  EXPECT_FALSE(one_cycle({.cycle_momentum = false}).betas(3));
}

TEST(Schedule, OneCycleMayGoByStairsAndStayAtItsLowestRate) {
  const Schedule schedule =
      one_cycle({.first_steps = 4, .second_steps = 4, .first_stairs = 2, .second_stairs = 2});
  expect_rates(schedule, 9.0, {1, 1, 3, 3, 5, 3, 3, 1, 1, 1, 1, 1});
  EXPECT_NEAR(schedule.betas(9)->beta1, 0.9, 1e-12);
}

TEST(Schedule, LRRangeTestRises) {
  Schedule schedule{
      .kind = ScheduleKind::kLrRangeTest, .min_lr = 0.1, .range = {.steps = 4, .rate = 2.0}};
  expect_rates(schedule, 9.0, {.1, .15, .2, .25, .3, .35, .4, .45, .5});
  schedule.range.staircase = true;
  expect_rates(schedule, 9.0, {.1, .1, .1, .1, .3, .3, .3, .3, .5});
}

TEST(Schedule, MegatronsDecaysFollowTheirFormulas) {
  const int64_t warmup = 40;
  const int64_t total = 400;
  const double lr = 0.6;
  const double low = 0.06;
  for (const char* style : {"constant", "linear", "cosine", "inverse-square-root"}) {
    const std::string name = style;
    const Schedule schedule{
        .kind = Schedule::parse_megatron(style), .warmup = warmup, .total = total, .min_lr = low};
    for (int64_t x = 0; x <= 480; x += 16) {
      double expected = 0;
      const double q = static_cast<double>(x - warmup) / (total - warmup);
      if (x <= warmup) {
        expected = lr * x / warmup;
      } else if (name == "constant") {
        expected = lr;
      } else if (x > total) {
        expected = low;
      } else if (name == "linear") {
        expected = low + (lr - low) * (1 - q);
      } else if (name == "cosine") {
        expected = low + (lr - low) * (1 + std::cos(std::numbers::pi * q)) / 2;
      } else {
        expected = std::max(low, lr * std::sqrt(40.0) / std::sqrt(static_cast<double>(x)));
      }
      EXPECT_NEAR(schedule.at(x, lr), expected, 1e-12) << style << " at " << x;
    }
  }
  const Schedule without_warmup{.kind = ScheduleKind::kMegatronInverseSquareRoot, .total = 100};
  expect_rates(without_warmup, 1.0, {1, 1, std::sqrt(0.5), std::sqrt(1 / 3.0)});
}

TEST(Schedule, MegatronsWeightDecayGrows) {
  DecayRamp ramp{.style = DecayRamp::parse("linear"), .start = 0.1, .end = 0.5, .total = 8};
  for (int64_t x = 0; x <= 12; ++x) {
    const double part = std::min(1.0, x / 8.0);
    ramp.style = DecayRamp::Style::kLinear;
    EXPECT_NEAR(ramp.at(x), 0.1 + 0.4 * part, 1e-12);
    ramp.style = DecayRamp::Style::kCosine;
    EXPECT_NEAR(ramp.at(x), 0.1 + 0.2 * (1 - std::cos(std::numbers::pi * part)), 1e-12);
    ramp.style = DecayRamp::Style::kConstant;
    EXPECT_EQ(ramp.at(x), 0.5);
  }
}

TEST(Schedule, AnUnknownNameIsRefusedWithTheKnownOnes) {
  try {
    Schedule::parse("cosinus");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cosinus"));
    EXPECT_THAT(error.help(), HasSubstr("WarmupDecayLR"));
  }
  EXPECT_THROW(Schedule::parse_megatron("WarmupLR"), UsageError);
  EXPECT_THROW(DecayRamp::parse("square"), UsageError);
}

TEST(Configured, AConfigsCycleLandsInTheSchedule) {
  SchedulerConfig config;
  config.type = "OneCycle";
  config.cycle_min_lr = 1;
  config.cycle_max_lr = 5;
  config.cycle_first_step_size = 4;
  config.cycle_first_stair_count = 2;
  expect_rates(schedule_of(config, 100), 9.0, {1, 1, 3, 3, 5, 3, 3, 1, 1});
  config = {};
  config.type = "LRRangeTest";
  config.lr_range_test_min_lr = 0.1;
  config.lr_range_test_step_size = 1;
  expect_rates(schedule_of(config, 100), 9.0, {.1, .2, .3});
  config = {};
  EXPECT_EQ(schedule_of(config, 100).kind, ScheduleKind::kConstant);
}

TEST(Configured, AConfigsConstantsLandInTheOptimizer) {
  OptimizerConfig config;
  EXPECT_TRUE(std::holds_alternative<AdamSettings>(optimizer_settings(config).kind));
  config.betas = {0.5, 0.25};
  config.eps = 2;
  config.weight_decay = 3;
  config.momentum = 0.125;
  config.nesterov = true;
  config.muon_lr = 4;
  config.adjust_lr_fn = "match_rms_adamw";
  config.type = "muon";
  const auto muon = std::get<MuonSettings>(optimizer_settings(config).kind);
  EXPECT_EQ(muon.momentum, 0.125);
  EXPECT_EQ(muon.beta2, 0.25);
  EXPECT_EQ(muon.muon_lr, 4);
  EXPECT_TRUE(muon.match_adamw);
  config.type = "sgd";
  const auto sgd = std::get<SgdSettings>(optimizer_settings(config).kind);
  EXPECT_EQ(sgd.momentum, 0.125);
  EXPECT_TRUE(sgd.nesterov);
  config.type = "lion";
  EXPECT_EQ(std::get<LionSettings>(optimizer_settings(config).kind).beta2, 0.25);
  config.type = "lamb";
  EXPECT_EQ(std::get<LambSettings>(optimizer_settings(config).kind).max_coeff, 10);
  config.type = "adagrad";
  EXPECT_EQ(std::get<AdagradSettings>(optimizer_settings(config).kind).eps, 2);
}

}  // namespace
}  // namespace reknit
