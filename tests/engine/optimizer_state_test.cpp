// The states of every optimizer go through checkpoints, and schedules and skips with them.
#include "reknit/engine/run_state.h"
#include "tests/checkpoint/checkpoint_support.h"
#include "tests/support/toy_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reknit {
namespace {

using namespace testing_support;
using testing::HasSubstr;

const ToyModel kToy = run_toy_model();

TrainerSettings trainer_with(OptimizerSettings optimizer) {
  return {.name = "toy",
          .lr = 0.05,
          .schedule = {},
          .optimizer = std::move(optimizer),
          .clip = 1.0,
          .scaler = {}};
}

struct Named {
  const char* name;
  OptimizerSettings settings;
  double bound = 1e-6;
};

std::vector<Named> optimizers() {
  return {
      {"adagrad", {.kind = AdagradSettings{.weight_decay = 0.1, .initial_accumulator = 0.1}}},
      {"lamb", {.kind = LambSettings{.weight_decay = 0.1}}},
      {"lion", {.kind = LionSettings{.weight_decay = 0.1}}},
      {"sgd", {.kind = SgdSettings{}}},
      {"sgd_momentum", {.kind = SgdSettings{.momentum = 0.9, .dampening = 0.5}}},
      {"muon", {.kind = MuonSettings{.weight_decay = 0.1}}, 2e-3},
  };
}

using Weights = std::vector<at::Tensor>;

/// Trains `steps` from the start or from a checkpoint and saves in `out` if it is given.
std::pair<Weights, std::string> train(const TrainerSettings& settings, const RunPlace& place,
                                      const std::string& from, int steps, const std::string& out) {
  std::pair<Weights, std::string> result;
  on_ranks(place.world, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, place, comm, settings);
    if (from.empty()) {
      load_toy(rank.store(), kToy);
    } else {
      rank.load(from);
    }
    rank.train(steps);
    const std::string saved = out.empty() ? "" : rank.save(out);
    const Weights weights = rank.weights();
    if (comm->rank() == 0) {
      result = {weights, saved};
    }
  });
  return result;
}

class OptimizerState : public testing::TestWithParam<Named> {};

TEST_P(OptimizerState, ContinuesFromAnyPlacementUnderAnyOther) {
  const TrainerSettings settings = trainer_with(GetParam().settings);
  const std::vector<RunPlace> places = {
      {.world = 1},
      {.world = 3},
      {.world = 2, .zero_stage = 0},
      {.world = 2, .zero_stage = 1, .persistence_threshold = 16},
      {.world = 4, .shard_size = 2},
  };
  const Weights expected = train(settings, places[0], "", 5, "").first;
  for (const RunPlace& before : places) {
    const TempFolder out;
    const std::string saved = train(settings, before, "", 3, out.path()).second;
    for (const RunPlace& after : places) {
      SCOPED_TRACE(testing::Message() << before << " then " << after);
      const Weights weights = train(settings, after, saved, 2, "").first;
      for (size_t i = 0; i < expected.size(); ++i) {
        if (expected[i].numel() > 0) {
          EXPECT_LT((weights[i] - expected[i]).abs().max().item<double>(),
                    fp32_bound(GetParam().bound))
              << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerState, testing::ValuesIn(optimizers()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(OptimizerStates, ACheckpointOfAnotherOptimizerIsRefusedByName) {
  const TempFolder out;
  const std::string saved =
      train(trainer_with({.kind = LionSettings{}}), {.world = 1}, "", 1, out.path()).second;
  try {
    train(trainer_with({}), {.world = 1}, saved, 1, "");
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("was made with lion"));
    EXPECT_THAT(error.what(), HasSubstr("trained with adam"));
  }
  // The states of an SGD without momentum are not those of one with it.
  const TempFolder plain;
  const std::string without =
      train(trainer_with({.kind = SgdSettings{}}), {.world = 1}, "", 1, plain.path()).second;
  EXPECT_THROW(
      train(trainer_with({.kind = SgdSettings{.momentum = 0.9}}), {.world = 1}, without, 1, ""),
      InputError);
}

TEST(OptimizerStates, AScheduleInSamplesStandsWhereItsCallerSays) {
  TrainerSettings settings = trainer_with({.kind = SgdSettings{.weight_decay = 0.5}});
  settings.schedule = {.kind = Schedule::parse_megatron("linear"), .warmup = 8, .total = 32};
  settings.decay_ramp = DecayRamp{DecayRamp::Style::kLinear, 0.0, 0.8, 32};
  const TempFolder out;
  on_ranks(1, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 1}, comm, settings);
    load_toy(rank.store(), kToy);
    std::vector<double> rates;
    for (const int64_t position : {0, 4, 8, 20}) {
      rank.pass();
      rates.push_back(rank.trainer().step(position).lr);
    }
    EXPECT_THAT(rates, testing::ElementsAre(0.0, 0.025, 0.05, 0.025));
    const std::string saved = rank.save(out.path());
    ToyRank again(kToy, {.world = 1}, comm, settings);
    again.load(saved);
    again.pass();
    const at::Tensor before = again.weights()[0].clone();
    EXPECT_EQ(again.trainer().step(32).lr, 0.0);
    EXPECT_TRUE(at::equal(again.weights()[0], before));
  });
}

TEST(OptimizerStates, OneCycleTurnsTheFirstBeta) {
  TrainerSettings settings = trainer_with({.kind = LionSettings{}});
  settings.schedule = {.kind = ScheduleKind::kOneCycle,
                       .min_lr = 0.1,
                       .max_lr = 0.2,
                       .cycle = {.first_steps = 2, .min_momentum = 0.25, .max_momentum = 0.75}};
  settings.clip = 0;
  on_ranks(1, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 1}, comm, settings);
    const auto step = [&](double grad) {
      Gradients grads = rank.store().gradients(0);
      grads[0].fill_(grad);
      grads[1].fill_(grad);
      rank.store().reduce(std::move(grads));
      rank.trainer().step();
      return rank.weights()[0].flatten()[0].item<double>();
    };
    // Means: 0.99 of the past. The sign of beta1 * mean + (1 - beta1) * gradient decides.
    EXPECT_NEAR(step(1.0), -0.1, 1e-6);
    // beta1 is 0.5: 0.5 * 0.01 - 0.5 * 0.02 < 0.
    EXPECT_NEAR(step(-0.02), -0.1 + 0.15, 1e-6);
    // The mean is 0.0097 and beta1 0.25 again: 0.25 * 0.0097 - 0.75 * 0.002 > 0.
    EXPECT_NEAR(step(-0.002), 0.05 - 0.2, 1e-6);
  });
}

}  // namespace
}  // namespace reknit
