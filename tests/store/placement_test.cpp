// Shard numbers, the two-stage gather, and placements that are refused.
#include "reknit/store/placement.h"

#include "reknit/base/error.h"
#include "reknit/comm/gloo.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reknit {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;

TEST(Placement, ShardsOfWholeNodesAreNumberedLocalMajor) {
  const auto order = [](int nodes, int world, int first, int size) {
    return shard_order(spread_over_nodes(world, nodes), world, first, size);
  };
  EXPECT_EQ(order(2, 4, 0, 4), (std::vector{0, 2, 1, 3}));
  EXPECT_EQ(order(4, 8, 4, 4), (std::vector{4, 6, 5, 7}));
  EXPECT_EQ(order(3, 6, 0, 6), (std::vector{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(order(2, 6, 0, 6), (std::vector{0, 3, 1, 4, 2, 5}));
  // Inside one node, over parts of nodes, and with one rank a node: as they are.
  EXPECT_EQ(order(2, 8, 4, 4), (std::vector{4, 5, 6, 7}));
  EXPECT_EQ(order(2, 6, 2, 2), (std::vector{2, 3}));
  EXPECT_EQ(order(4, 4, 0, 4), (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(shard_order({}, 4, 2, 2), (std::vector{2, 3}));
  EXPECT_EQ(shard_order({0, 1, 0, 1}, 4, 0, 4), (std::vector{0, 1, 2, 3}));
}

at::TensorOptions floats() {
  return at::TensorOptions(at::kFloat).device(this_rank().device);
}

TEST(Placement, ReplicasHoldTheSameShard) {
  on_ranks(
      8,
      [](std::shared_ptr<Communicator> world) {
        const int rank = world->rank();
        const StoreComms comms = StoreComms::over(world, {3, 4, true});
        EXPECT_EQ(comms.shard_ranks[comms.reduce->rank()], rank);
        EXPECT_EQ(comms.gather->rank(), comms.reduce->rank());
        const at::Tensor shard = at::full({1}, comms.reduce->rank(), floats());
        const auto sum =
            comms.replica->all_reduce({shard.clone()}, ReduceOp::kSum, this_rank().compute)
                .wait_on_host();
        EXPECT_EQ(sum[0].item<float>(), 2 * shard.item<float>());
      },
      patience(), {}, 4);
}

std::string refusal(int world, int nodes, int shard_size, bool hierarchical) {
  std::string text = "accepted";
  try {
    on_ranks(
        world,
        [&](std::shared_ptr<Communicator> comm) {
          StoreComms::over(comm, {3, shard_size, hierarchical});
        },
        patience(), {}, nodes);
  } catch (const UsageError& error) {
    text = str(error.what(), " | ", error.help());
  }
  return text;
}

TEST(Placement, GroupsThatDoNotFitAreRefusedWithTheNumbers) {
  EXPECT_THAT(refusal(4, 1, 3, false), HasSubstr("3 ranks does not divide the world of 4"));
  EXPECT_THAT(refusal(4, 2, 2, true), AllOf(HasSubstr("2 ranks a group with 2 ranks a node"),
                                            HasSubstr("inside one node")));
  EXPECT_THAT(refusal(12, 3, 6, true), HasSubstr("a multiple of the ranks a node"));
  EXPECT_THAT(refusal(4, 1, 4, true), HasSubstr("inside one node"));
  EXPECT_EQ(refusal(4, 2, 4, true), "accepted");
}

/// Flat and staged gathers of a group of two nodes, and its shards in order.
void expect_equal_gathers(std::shared_ptr<Communicator> world) {
  const int shard_size = world->size();
  const StoreComms flat = StoreComms::over(world, shard_size);
  const StoreComms staged = StoreComms::over(world, {3, shard_size, true});
  for (const int64_t length : {1, 5}) {
    const at::Tensor shard = at::arange(length, floats()) + 10.0 * flat.reduce->rank();
    std::vector<at::Tensor> results;
    for (const StoreComms* comms : {&flat, &staged}) {
      const at::Tensor full = at::full({length * shard_size}, -1, floats());
      const at::Tensor other = at::full({2 * length * shard_size}, -1, floats());
      const auto pairs = std::vector<GatherPair>{{full, shard}, {other, shard.repeat({2})}};
      results.push_back(comms->all_gather(full, pairs, this_rank().compute).wait_on_host());
      results.push_back(other);
    }
    EXPECT_TRUE(at::equal(results[0], results[2]));
    EXPECT_TRUE(at::equal(results[1], results[3]));
    for (int s = 0; s < shard_size; ++s) {
      EXPECT_EQ(results[0][s * length].item<float>(), 10.0F * static_cast<float>(s));
    }
  }
}

TEST(Placement, BothGathersFillTheBufferInTheOrderOfShards) {
  for (const auto& [world, nodes] : {std::pair{4, 2}, {6, 2}, {6, 3}, {8, 4}}) {
    on_ranks(world, expect_equal_gathers, patience(), {}, nodes);
  }
}

TEST(Placement, BothGathersFillTheBufferInTheOrderOfShardsBetweenProcesses) {
  const auto place = test::process_place();
  if (!place) {
    EXPECT_EQ(test::run_in_processes(4), std::vector<int>(4, 0));
    return;
  }
  const RankScope scope(place->rank, place->world, c10::kCPU);
  expect_equal_gathers(make_gloo(*place, {.name = "world", .nodes = spread_over_nodes(4, 2)}));
}

TEST(Placement, ALateFirstStageDelaysTheSecondOnEveryRank) {
  const FaultPlan late = [](CommKind kind, int64_t, int rank) {
    return Fault{.delay_start =
                     std::chrono::milliseconds(kind == CommKind::kAllGather && rank == 1 ? 20 : 0)};
  };
  on_ranks(4, expect_equal_gathers, patience(), late, 2);
}

}  // namespace
}  // namespace reknit
