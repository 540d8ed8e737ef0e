// Which bytes cross between nodes, in numbers.
#include "reknit/comm/topology.h"

#include "reknit/base/error.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace reknit {
namespace {

CommCounts::Entry traffic(CommKind kind, int64_t floats, int rank, int root = 0) {
  const Operation operation{
      .kind = kind, .root = root, .in = {at::zeros({floats})}, .out = {at::zeros({floats})}};
  return traffic_of(operation, {0, 0, 0, 1, 1, 1}, rank, 6);
}

TEST(Topology, RanksSpreadInConsecutiveRuns) {
  EXPECT_EQ(spread_over_nodes(6, 2), (std::vector{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(spread_over_nodes(3, 1), (std::vector{0, 0, 0}));
  EXPECT_THROW(spread_over_nodes(6, 4), UsageError);
  EXPECT_THROW(spread_over_nodes(6, 0), UsageError);
}

TEST(Topology, EveryPieceGoesStraightFromItsOwner) {
  // 60 floats, a piece of 10 for each of 6 ranks: two neighbours, three on the other node.
  for (const CommKind kind :
       {CommKind::kAllGather, CommKind::kReduceScatter, CommKind::kAllToAll}) {
    const auto entry = traffic(kind, 60, 4);
    EXPECT_EQ(entry.count, 1);
    EXPECT_EQ(entry.bytes, 240);
    EXPECT_EQ(entry.inside, 2 * 40) << name_of(kind);
    EXPECT_EQ(entry.across, 3 * 40) << name_of(kind);
  }
  EXPECT_EQ(traffic(CommKind::kAllReduce, 60, 0).inside, 2 * 2 * 40);
  EXPECT_EQ(traffic(CommKind::kAllReduce, 60, 0).across, 2 * 3 * 40);
  EXPECT_EQ(traffic(CommKind::kBroadcast, 60, 5, 0).across, 240);
  EXPECT_EQ(traffic(CommKind::kBroadcast, 60, 1, 0).inside, 240);
  EXPECT_EQ(traffic(CommKind::kBroadcast, 60, 0, 0).inside, 0);
}

TEST(Topology, PartsKnowTheirNodes) {
  auto made = make_thread_group(4, {.name = "world", .nodes = spread_over_nodes(4, 2)});
  std::vector<std::shared_ptr<Communicator>> world;
  for (auto& comm : made) {
    world.push_back(std::move(comm));
  }
  run_ranks(std::vector<c10::Device>(4, c10::kCPU), [&](int rank) {
    auto across = world[rank]->split({rank % 2, rank % 2 + 2}, "across");
    EXPECT_EQ(across->options().nodes, (std::vector{0, 1}));
    across->all_reduce({at::zeros({8})}, ReduceOp::kSum, Stream()).wait(Stream());
    EXPECT_EQ(across->counts().all_reduce.across, 32);
    EXPECT_EQ(across->counts().all_reduce.inside, 0);
    CommCounts since = across->counts();
    since += across->counts();
    EXPECT_EQ(since.total().bytes, 64);
    since -= across->counts();
    EXPECT_EQ(since.all_reduce.count, 1);
  });
}

}  // namespace
}  // namespace reknit
