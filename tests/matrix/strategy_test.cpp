// Every strategy against the one-rank run of the same model: docs/strategies.md says how to
// run the whole table.
#include "tests/support/golden.h"
#include "tests/support/twin_run.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using namespace testing_support;

double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-5 : 1e-2;
}

Twin twin_of(const std::string& model, at::ScalarType dtype, int accumulation) {
  Twin twin{.model = model, .dtype = dtype, .accumulation = accumulation};
  if (dtype == at::kHalf) {
    twin.steps = 6;
    twin.overflows = {1, 3};
  }
  return twin;
}

/// The difference to the one-rank run, and that both ways to gather give the same bits.
void expect_twins(const std::string& model, at::ScalarType dtype, int accumulation, int world) {
  const Twin alone = twin_of(model, dtype, accumulation);
  const TwinRun expected = run_twin(alone);
  std::map<std::string, TwinRun> runs;
  for (const Strategy& strategy : strategies()) {
    if (const auto twin = placed(alone, strategy, world)) {
      runs[strategy.name] = run_twin(*twin);
      EXPECT_LE(difference(runs[strategy.name], expected), tolerance(dtype))
          << model << " " << strategy.name << " on " << world << " ranks, " << dtype;
    }
  }
  ASSERT_TRUE(runs.contains("MiCS 4 hierarchical"));
  EXPECT_EQ(difference(runs["MiCS 4 hierarchical"], runs["MiCS 4"]), 0.0);
}

TEST(Strategy, EveryStrategyTrainsEveryKindOfModelLikeOneRank) {
  for (const std::string& model : twin_models()) {
    expect_twins(model, at::kFloat, 3, 4);
  }
  expect_twins("opt", at::kBFloat16, 1, 4);
}

TEST(Strategy, AnOverflowOnOneRankSkipsTheSameStepsWithTheSameScales) {
  expect_twins("gpt2", at::kHalf, 1, 4);
  const TwinRun run = run_twin(twin_of("gpt2", at::kHalf, 1));
  EXPECT_FALSE(run.steps[1].applied);
  EXPECT_FALSE(run.steps[3].applied);
  EXPECT_TRUE(run.steps[5].applied);
  EXPECT_EQ(run.steps[0].loss_scale, 4096);
  EXPECT_EQ(run.steps[5].loss_scale, 2048);
}

// Public report: MiCS let weights be used before they had arrived, and fp16 diverged.
TEST(Strategy, MicsInHalfPrecisionLearnsAsZero3For20StepsWithEitherGather) {
  for (const int accumulation : {1, 3}) {
    const Twin zero3{.world = 4,
                     .placement = {3, 4},
                     .dtype = at::kHalf,
                     .accumulation = accumulation,
                     .steps = 20};
    const TwinRun expected = run_twin(zero3);
    EXPECT_LT(expected.losses.back(), 0.9 * expected.losses.front());
    for (const Placement& placement : {Placement{3, 2}, {3, 4}, {3, 4, true}}) {
      Twin mics = zero3;
      mics.nodes = 2;
      mics.placement = placement;
      EXPECT_LE(difference(run_twin(mics), expected), tolerance(at::kHalf));
    }
  }
}

TEST(Strategy, GathersThatArriveLateChangeNoBit) {
  for (const Placement& placement : {Placement{3, 2}, {3, 4}, {3, 4, true}}) {
    Twin twin{.world = 4, .nodes = 2, .placement = placement, .dtype = at::kHalf, .steps = 2};
    const TwinRun expected = run_twin(twin);
    twin.gather_delay = std::chrono::milliseconds(50);
    EXPECT_EQ(difference(run_twin(twin), expected), 0.0);
  }
}

TEST(Strategy, SecondCopiesChangeNoBit) {
  for (const int accumulation : {1, 3}) {
    Twin twin{.world = 4, .placement = {3, 4}, .dtype = at::kHalf, .accumulation = accumulation};
    twin.overflows = {1};
    const TwinRun expected = run_twin(twin);
    for (const int size : {2, 4}) {
      twin.placement.secondary_size = size;
      EXPECT_EQ(difference(run_twin(twin), expected), 0.0);
    }
  }
}

TEST(Strategy, WaitingAtOnceChangesNoBit) {
  for (const Placement& placement : {Placement{2, 4}, {3, 4}, {3, 4, true}}) {
    Twin twin{.world = 4, .nodes = 2, .placement = placement, .accumulation = 3};
    const TwinRun expected = run_twin(twin);
    twin.overlap = false;
    EXPECT_EQ(difference(run_twin(twin), expected), 0.0);
  }
}

TEST(Strategy, ReductionsInFp32OrBf16StayWithinTheirPrecision) {
  for (const Placement& placement : {Placement{0, 4}, {1, 4}, {2, 4}, {3, 4}, {3, 2}}) {
    Twin twin{.world = 4, .placement = placement, .dtype = at::kBFloat16, .accumulation = 3};
    const TwinRun expected = run_twin({.dtype = at::kBFloat16, .accumulation = 3});
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      twin.reduce_dtype = dtype;
      EXPECT_LE(difference(run_twin(twin), expected), tolerance(at::kBFloat16));
    }
  }
}

TEST(Strategy, LossesAndNormsAreThoseOfPyTorch) {
  const auto folder = golden_folder("strategies");
  std::ifstream file(folder / "expected.json");
  const auto expected = nlohmann::json::parse(file);
  for (const std::string& model : twin_models()) {
    for (const auto& [strategy, world] : {std::pair{0, 1}, {3, 3}, {6, 4}}) {
      const Twin alone{.model = model, .folder = folder / model};
      const TwinRun run = run_twin(*placed(alone, strategies()[strategy], world));
      for (size_t step = 0; step < run.losses.size(); ++step) {
        const auto& line = expected.at(model).at(step);
        EXPECT_NEAR(run.losses[step], line.at("loss").get<double>(), 1e-4) << model;
        const double norm = line.at("grad_norm").get<double>();
        EXPECT_NEAR(run.steps[step].grad_norm, norm, 1e-4 * norm) << model;
      }
    }
  }
}

/// A cell of the table: the largest difference over all models.
std::string cell(const Strategy& strategy, int world, at::ScalarType dtype, int accumulation,
                 std::map<std::string, TwinRun>& alone) {
  double largest = 0;
  for (const std::string& model : twin_models()) {
    const Twin one = twin_of(model, dtype, accumulation);
    const auto twin = placed(one, strategy, world);
    if (!twin) {
      return "-";
    }
    const std::string key = reknit::str(model, " ", dtype, " ", accumulation);
    if (!alone.contains(key)) {
      alone[key] = run_twin(one);
    }
    largest = std::max(largest, difference(run_twin(*twin), alone[key]));
  }
  EXPECT_LE(largest, tolerance(dtype)) << strategy.name << " on " << world << " ranks";
  char text[32];
  std::snprintf(text, sizeof(text), largest == 0 ? "equal" : "%.0e", largest);
  return text;
}

TEST(Strategy, DISABLED_WholeTable) {
  std::map<std::string, TwinRun> alone;
  std::printf("%-20s %5s  %8s %8s %8s %8s %8s %8s\n", "strategy", "ranks", "fp32", "fp32 x3",
              "fp16", "fp16 x3", "bf16", "bf16 x3");
  for (const Strategy& strategy : strategies()) {
    for (const int world : {1, 2, 3, 4, 6, 8}) {
      std::printf("%-20s %5d ", strategy.name.c_str(), world);
      for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
        for (const int accumulation : {1, 3}) {
          std::printf(" %8s", cell(strategy, world, dtype, accumulation, alone).c_str());
          std::fflush(stdout);
        }
      }
      std::printf("\n");
    }
  }
  for (const int world : {4, 8}) {
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      for (const std::string& model : twin_models()) {
        const Twin one = twin_of(model, dtype, 3);
        const TwinRun flat = run_twin(*placed(one, strategies()[5], world));
        EXPECT_EQ(difference(run_twin(*placed(one, strategies()[6], world)), flat), 0.0);
      }
    }
  }
}

}  // namespace
}  // namespace reknit
