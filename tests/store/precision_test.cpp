// Stores of 16 bits: overflow, skipped steps, mixed dtypes.
#include "tests/support/toy_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace reknit {
namespace {

using namespace testing_support;
using testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
const ToyModel kModel{{{{{8, 5}}, {{3}, true, false}}, {{{33}}}}};

using TrainerBody = std::function<void(Store& store, Trainer& trainer)>;

void with_trainer(at::ScalarType dtype, Placement placement, TrainerSettings settings,
                  const TrainerBody& body, const FaultPlan& faults = {}) {
  on_ranks(
      placement.shard_size,
      [&](std::shared_ptr<Communicator> comm) {
        SlotPool pool(rank_memory, true);
        Store store({.name = "toy", .dtype = dtype, .placement = placement, .allocator = {}},
                    StoreComms::over(comm, placement.shard_size), pool);
        for (size_t g = 0; g < kModel.groups.size(); ++g) {
          store.add(kModel.spec(g));
        }
        store.seal();
        pool.seal();
        load_toy(store, kModel);
        Trainer trainer(store, settings);
        body(store, trainer);
      },
      patience(), faults);
}

TEST(Precision, Fp16FollowsTheScalerAndAllRanksSkipTogether) {
  const std::vector<bool> pattern = {true,  true,  false, false, false,
                                     false, false, false, true,  true};
  TrainerSettings settings = ToyRun{}.trainer;
  settings.scaler = {.initial = 16, .window = 4, .hysteresis = 2, .minimum = 1};
  // Each step reduces the two groups once: the first of them overflows on rank 0.
  const FaultPlan faults = [&](CommKind kind, int64_t index, int rank) {
    Fault fault;
    if (kind == CommKind::kReduceScatter && rank == 0 && index % 2 == 0) {
      fault.corrupt = [&pattern, step = static_cast<size_t>(index / 2)](at::Tensor& tensor) {
        if (pattern.at(step)) {
          tensor.view(-1)[0].fill_(kInf);
        }
      };
    }
    return fault;
  };
  // Operations on the reduce group are counted together with the norms, so each step
  // looks at its own number: reduce, reduce, norm, and a report where it was skipped.
  std::vector<int64_t> steps_seen(2, 0);
  const FaultPlan per_step = [&](CommKind kind, int64_t, int rank) {
    return kind == CommKind::kReduceScatter ? faults(kind, steps_seen[rank]++, rank) : Fault{};
  };
  LossScaler scaler(settings.scaler);
  std::vector<double> expected;
  for (const bool overflow : pattern) {
    EXPECT_TRUE(scaler.update(overflow));
    expected.push_back(scaler.scale());
  }
  with_trainer(
      at::kHalf, {3, 2}, settings,
      [&](Store& store, Trainer& trainer) {
        for (size_t step = 0; step < pattern.size(); ++step) {
          const auto before = toy_weights(store, kModel);
          toy_pass(store, kModel, static_cast<int>(step), 0, trainer.loss_scale());
          EXPECT_EQ(trainer.step().applied, !pattern[step]) << "step " << step;
          EXPECT_EQ(trainer.loss_scale(), expected[step]) << "step " << step;
          const auto after = toy_weights(store, kModel);
          EXPECT_EQ(at::equal(before[0], after[0]), pattern[step]) << "step " << step;
        }
      },
      per_step);
}

TEST(Precision, Bf16SkipsAStepWithInfOnOneRankAndTheScheduleWaits) {
  for (const int stage : {2, 3}) {
    testing::internal::CaptureStderr();
    TrainerSettings settings = ToyRun{}.trainer;
    settings.schedule = {.kind = ScheduleKind::kLinear, .total = 10};
    with_trainer(at::kBFloat16, {stage, 2}, settings, [&](Store& store, Trainer& trainer) {
      std::vector<double> rates;
      for (int step = 1; step <= 5; ++step) {
        const auto before = toy_weights(store, kModel);
        toy_pass(store, kModel, step, 0, 1.0);
        if (step == 3) {
          const Full weights = store.full(1, Phase::kBackward);
          Gradients grads = store.gradients(1);
          if (this_rank().rank == 1) {
            grads[0][4].fill_(kInf);
          }
          store.reduce(std::move(grads));
        }
        const StepRecord record = trainer.step();
        EXPECT_EQ(record.applied, step != 3);
        if (record.applied) {
          rates.push_back(record.lr);
        } else {
          const auto after = toy_weights(store, kModel);
          for (size_t i = 0; i < before.size(); ++i) {
            EXPECT_TRUE(at::equal(before[i], after[i]));
          }
        }
      }
      EXPECT_EQ(trainer.skipped(), 1);
      ASSERT_EQ(rates.size(), 4u);
      for (int i = 0; i < 4; ++i) {
        EXPECT_DOUBLE_EQ(rates[i], 0.05 * (1 - i / 10.0));
      }
    });
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_THAT(text, HasSubstr("step 3"));
    EXPECT_THAT(text, HasSubstr("g1.p0"));
    EXPECT_THAT(text, HasSubstr("inf"));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
}

TEST(Precision, Fp32WithNaNIsAnErrorThatNamesStepAndParameter) {
  try {
    with_trainer(at::kFloat, {3, 2}, ToyRun{}.trainer, [&](Store& store, Trainer& trainer) {
      toy_pass(store, kModel, 0, 0, std::numeric_limits<double>::quiet_NaN());
      trainer.step();
    });
    FAIL() << "no error";
  } catch (const NumbersError& error) {
    EXPECT_THAT(error.what(), HasSubstr("step 1"));
    EXPECT_THAT(error.what(), HasSubstr("g0.p0"));
    EXPECT_THAT(error.what(), HasSubstr("NaN"));
  }
}

TEST(Precision, AtTheFloorOfTheScaleFp16EndsWithTheCountOfSkippedSteps) {
  TrainerSettings settings = ToyRun{}.trainer;
  settings.scaler = {.initial = 4, .window = 4, .hysteresis = 1, .minimum = 1};
  int steps = 0;
  try {
    with_trainer(at::kHalf, {3, 2}, settings, [&](Store& store, Trainer& trainer) {
      for (int step = 0; step < 5; ++step) {
        toy_pass(store, kModel, step, 0, kInf);
        trainer.step();
        if (this_rank().rank == 0) {
          ++steps;
        }
      }
    });
    FAIL() << "no error";
  } catch (const NumbersError& error) {
    EXPECT_THAT(error.what(), HasSubstr("step 3"));
    EXPECT_THAT(error.what(), HasSubstr("(3 steps were skipped)"));
    EXPECT_EQ(steps, 2);
  }
}

TEST(Precision, SixteenBitRunsStayCloseToPlainArithmeticOverMasters) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const Placement placement : {Placement{3, 4}, Placement{1, 4}, Placement{0, 4}}) {
      ToyRun run;
      run.placement = placement;
      run.dtype = dtype;
      run.trainer.scaler.initial = 256;
      const auto expected = toy_reference(kModel, 4, run);
      const auto ranks = run_toy(kModel, 4, run);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::allclose(ranks[0][i].to(at::kDouble), expected[i], 2e-2, 2e-2));
        EXPECT_TRUE(at::equal(ranks[3][i], ranks[0][i]));
      }
    }
  }
}

TEST(Precision, MixedDtypesKeepTheirDtypeAndBitsThroughAStep) {
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    SlotPool pool(rank_memory, true);
    Store store({.name = "mixed", .placement = {3, 2}, .persistence_threshold = 3, .allocator = {}},
                StoreComms::over(comm, 2), pool);
    GroupSpec spec{"mixed", {}};
    spec.params.push_back({.name = "a", .shape = {6}});
    spec.params.push_back({.name = "b", .shape = {10}, .dtype = at::kBFloat16});
    spec.params.push_back({.name = "c", .shape = {2}});  // persistent
    spec.params.push_back({.name = "d", .shape = {16}, .trainable = false, .dtype = at::kByte});
    store.add(spec);
    store.seal();
    pool.seal();
    const std::vector<at::Tensor> values = {
        at::arange(6, at::kFloat) / 7, at::arange(10, at::kFloat) / 3, at::arange(2, at::kFloat),
        at::arange(16, at::kByte) * 15};
    for (int p = 0; p < 4; ++p) {
      store.write(0, p, 0, values[p]);
    }
    Trainer trainer(store,
                    {.name = "mixed", .lr = 0.5, .schedule = {}, .optimizer = {}, .scaler = {}});
    {
      Gradients grads = store.gradients(0);
      EXPECT_FALSE(grads[3].defined());
      for (int p = 0; p < 3; ++p) {
        EXPECT_EQ(grads[p].scalar_type(), p == 1 ? at::kBFloat16 : at::kFloat);
        grads[p].fill_(1.0);
      }
      store.reduce(std::move(grads));
    }
    EXPECT_TRUE(trainer.step().applied);
    // The first step of Adam moves every element by lr.
    for (int p = 0; p < 3; ++p) {
      const at::Tensor after = store.read_full(0, p).cpu();
      const at::Tensor expected = values[p] - 0.5;
      EXPECT_EQ(after.scalar_type(), p == 1 ? at::kBFloat16 : at::kFloat);
      EXPECT_TRUE(at::allclose(after.to(at::kFloat), expected, p == 1 ? 4e-3 : 1e-5, 1e-5))
          << p << ": " << after << " against " << expected;
    }
    EXPECT_TRUE(at::equal(store.read_full(0, 3).cpu(), values[3]));
  });
}

}  // namespace
}  // namespace reknit
