// The bytes that each strategy moves in a training step, against their formulas.
#include "tests/support/toy_model.h"

#include <gtest/gtest.h>

namespace reknit {
namespace {

using namespace testing_support;

constexpr int kMicroBatches = 3;
const ToyModel kModel{{{{{40, 9}}, {{5}}}, {{{77, 3}}}, {{{64}}, {{11, 2}, false}}}};

struct Plan {
  int world = 4;
  int nodes = 1;
  Placement placement;
  at::ScalarType dtype = at::kHalf;
  std::optional<at::ScalarType> reduce_dtype = {};
};

/// What rank `rank` counted in one step after the first, and the model's sizes in elements.
struct Measured {
  CommCounts comm;
  int64_t weights = 0;    ///< of all groups with padding
  int64_t trainable = 0;  ///< the part of them that has gradients
};

Measured measure(const Plan& plan, int rank = 0) {
  Measured measured;
  const auto body = [&](std::shared_ptr<Communicator> world) {
    const int mine = world->rank();
    SlotPool pool(rank_memory);
    Store store({.name = "toy",
                 .dtype = plan.dtype,
                 .placement = plan.placement,
                 .reduce_dtype = plan.reduce_dtype,
                 .allocator = {}},
                StoreComms::over(std::move(world), plan.placement), pool);
    for (size_t g = 0; g < kModel.groups.size(); ++g) {
      store.add(kModel.spec(g));
    }
    store.seal();
    pool.seal();
    load_toy(store, kModel);
    Trainer trainer(store, {.name = "toy", .lr = 0.01, .scaler = {.initial = 1.0}});
    CommCounts before;
    for (int step = 0; step < 2; ++step) {
      before = store.comms().counts();
      for (int micro = 0; micro < kMicroBatches; ++micro) {
        toy_pass(store, kModel, step, micro, trainer.loss_scale());
      }
      EXPECT_TRUE(trainer.step().applied);
    }
    if (mine == rank) {
      measured.comm = store.comms().counts();
      measured.comm -= before;
      for (GroupId g = 0; g < store.num_groups(); ++g) {
        for (const SegmentLayout& segment : store.layout(g).segments) {
          measured.weights += segment.padded;
          measured.trainable += segment.trainable ? segment.padded : 0;
        }
      }
    }
  };
  on_ranks(plan.world, body, patience(), {}, plan.nodes);
  return measured;
}

constexpr int64_t kHalfBytes = 2;
constexpr int64_t kFloatBytes = 4;
constexpr int64_t kNormBytes = 8;

TEST(Traffic, Zero0AllReducesFp32GradientsOnceAStep) {
  const Measured m = measure({.placement = {0, 4}});
  EXPECT_EQ(m.comm.all_reduce.bytes, kFloatBytes * m.trainable);
  EXPECT_EQ(m.comm.all_reduce.count, 1);
  EXPECT_EQ(m.comm.all_gather.bytes, 0);
  EXPECT_EQ(m.comm.reduce_scatter.bytes, 0);
}

TEST(Traffic, Zero1ScattersOnceAndGathersTheUpdatedWeights) {
  const Measured m = measure({.placement = {1, 4}});
  EXPECT_EQ(m.comm.reduce_scatter.bytes, kFloatBytes * m.trainable);
  EXPECT_EQ(m.comm.reduce_scatter.count, 1);
  EXPECT_EQ(m.comm.all_gather.bytes, kHalfBytes * m.trainable);
  EXPECT_EQ(m.comm.all_gather.count, 1);
  EXPECT_EQ(m.comm.all_reduce.bytes, kNormBytes);
}

TEST(Traffic, Zero2ScattersEveryMicroBatch) {
  const Measured m = measure({.placement = {2, 4}});
  EXPECT_EQ(m.comm.reduce_scatter.bytes, kMicroBatches * kHalfBytes * m.trainable);
  EXPECT_EQ(m.comm.all_gather.bytes, kHalfBytes * m.trainable);
  EXPECT_EQ(m.comm.all_reduce.bytes, kNormBytes);
}

TEST(Traffic, Zero3GathersTwiceAndScattersOnceAMicroBatch) {
  const Measured m = measure({.placement = {3, 4}});
  EXPECT_EQ(m.comm.all_gather.bytes, 2 * kMicroBatches * kHalfBytes * m.weights);
  EXPECT_EQ(m.comm.reduce_scatter.bytes, kMicroBatches * kHalfBytes * m.trainable);
  EXPECT_EQ(m.comm.all_reduce.bytes, kNormBytes);
  // Straight from the owners, each rank receives all but its own quarter.
  EXPECT_EQ(m.comm.all_gather.inside, m.comm.all_gather.bytes * 3 / 4);
  EXPECT_EQ(m.comm.all_gather.across, 0);
}

TEST(Traffic, Zero3OverTwoNodesReceivesHalfOfEverythingFromTheOther) {
  const Measured m = measure({.nodes = 2, .placement = {3, 4}});
  EXPECT_EQ(m.comm.all_gather.across, m.comm.all_gather.bytes / 2);
  EXPECT_EQ(m.comm.reduce_scatter.across, m.comm.reduce_scatter.bytes / 2);
}

TEST(Traffic, MicsInsideANodeMovesNoParameterAndNoGradientAcrossUntilTheBoundary) {
  const Measured m = measure({.nodes = 2, .placement = {3, 2}});
  EXPECT_EQ(m.comm.all_gather.bytes, 2 * kMicroBatches * kHalfBytes * m.weights);
  EXPECT_EQ(m.comm.all_gather.across, 0);
  EXPECT_EQ(m.comm.reduce_scatter.across, 0);
  // Once a step: this rank's fp32 gradient shard, and the norm inside and across.
  EXPECT_EQ(m.comm.all_reduce.bytes, kFloatBytes * m.trainable / 2 + 2 * kNormBytes);
  EXPECT_EQ(m.comm.all_reduce.across, kFloatBytes * m.trainable / 2 + kNormBytes);
}

TEST(Traffic, AHierarchicalGatherReceivesOnlyItsLocalRanksShareFromOtherNodes) {
  const Plan flat{.world = 8, .nodes = 4, .placement = {3, 4, false}};
  const Plan staged{.world = 8, .nodes = 4, .placement = {3, 4, true}};
  for (const int rank : {0, 3, 6}) {
    const Measured f = measure(flat, rank);
    const Measured h = measure(staged, rank);
    const int64_t full = 2 * kMicroBatches * kHalfBytes * f.weights;
    // 2 nodes of 2 ranks a group. Flat: the other node's half. In stages: half of this
    // local rank's half, and the other local rank's half from inside.
    EXPECT_EQ(f.comm.all_gather.across, full / 2);
    EXPECT_EQ(h.comm.all_gather.across, full / 4);
    EXPECT_EQ(h.comm.all_gather.inside, full / 2);
    EXPECT_EQ(h.comm.all_gather.count, 2 * f.comm.all_gather.count);
    EXPECT_EQ(h.comm.reduce_scatter.across, f.comm.reduce_scatter.across);
    EXPECT_EQ(h.comm.all_reduce.bytes, f.comm.all_reduce.bytes);
  }
}

TEST(Traffic, SecondCopiesKeepAllGathersButTheFirstInsideTheNode) {
  const Measured zero3 = measure({.nodes = 2, .placement = {3, 4}});
  const Measured m = measure({.nodes = 2, .placement = {3, 4, false, 2}});
  const int64_t once = kHalfBytes * m.weights;
  EXPECT_EQ(m.comm.all_gather.bytes, 2 * kMicroBatches * once);
  EXPECT_EQ(m.comm.all_gather.across, once / 2);
  EXPECT_EQ(zero3.comm.all_gather.across, 2 * kMicroBatches * once / 2);
  EXPECT_EQ(m.comm.reduce_scatter.bytes, zero3.comm.reduce_scatter.bytes);
}

TEST(Traffic, ReductionsInAnotherTypeMoveItsBytes) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const int64_t size = dtype == at::kFloat ? 4 : 2;
    const auto with = [&](Placement placement, int nodes = 1) {
      return measure({.nodes = nodes, .placement = placement, .reduce_dtype = dtype});
    };
    const Measured zero0 = with({0, 4});
    EXPECT_EQ(zero0.comm.all_reduce.bytes, size * zero0.trainable);
    const Measured zero1 = with({1, 4});
    EXPECT_EQ(zero1.comm.reduce_scatter.bytes, size * zero1.trainable);
    const Measured zero3 = with({3, 4});
    EXPECT_EQ(zero3.comm.reduce_scatter.bytes, kMicroBatches * size * zero3.trainable);
    const Measured mics = with({3, 2}, 2);
    EXPECT_EQ(mics.comm.all_reduce.bytes, size * mics.trainable / 2 + 2 * kNormBytes);
  }
}

}  // namespace
}  // namespace reknit
