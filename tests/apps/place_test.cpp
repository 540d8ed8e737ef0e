// Devices, ranks and nodes from flags, launcher and machine.
#include "apps/place.h"

#include "apps/options.h"
#include "reknit/base/error.h"

#include <gmock/gmock.h>

namespace reknit {
namespace {

using testing::HasSubstr;

const GpuInfo kH200{"NVIDIA H200", 9, 0, 141LL << 30};
const GpuInfo kV100{"Tesla V100", 7, 0, 32LL << 30};

RunOptions options(std::optional<int64_t> ranks = {}, std::optional<int64_t> nodes = {}) {
  RunOptions o;
  o.ranks = ranks;
  o.nodes = nodes;
  return o;
}

LaunchedProcess launched(int rank, int world, int local_rank, int local_world) {
  LaunchedProcess process;
  process.rendezvous.rank = rank;
  process.rendezvous.world = world;
  process.local_rank = local_rank;
  process.local_world = local_world;
  process.launcher = "torchrun";
  return process;
}

std::string error_of(const RunOptions& o, const std::vector<GpuInfo>& gpus,
                     const std::vector<std::string>& unusable = {},
                     const std::optional<LaunchedProcess>& process = {}) {
  try {
    resolve_place(o, gpus, unusable, process);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Place, DefaultsAreAllGpusOrOneRankOnTheCpu) {
  EXPECT_EQ(resolve_place(options(), {}, {}, {}).ranks, 1);
  EXPECT_FALSE(resolve_place(options(), {}, {}, {}).cuda);
  EXPECT_EQ(resolve_place(options(), {kH200, kH200}, {}, {}).ranks, 2);
  EXPECT_TRUE(resolve_place(options(), {kH200, kH200}, {}, {}).cuda);
}

TEST(Place, AnUnusableGpuIsNeverASilentCpuRun) {
  EXPECT_THAT(error_of(options(), {kV100}, {too_old(kV100)}), HasSubstr("Tesla V100"));
  RunOptions cpu = options();
  cpu.device = "cpu";
  EXPECT_EQ(error_of(cpu, {kV100}, {too_old(kV100)}), "no error");
  EXPECT_EQ(too_old(kH200), "");
}

TEST(Place, MoreRanksThanGpusNeedsAWord) {
  RunOptions o = options(4);
  EXPECT_THAT(error_of(o, {kH200}), HasSubstr("4 ranks (--ranks) on 1 visible GPU"));
  o.share_gpus = true;
  EXPECT_EQ(resolve_place(o, {kH200}, {}, {}).devices().back(), c10::Device(c10::kCUDA, 0));
}

TEST(Place, TheLauncherDecidesRanksAndNodes) {
  const Place place = resolve_place(options(), {}, {}, launched(5, 8, 1, 4));
  EXPECT_EQ(place.ranks, 8);
  EXPECT_EQ(place.nodes, 2);
  EXPECT_EQ(place.devices().size(), 1u);
  EXPECT_THAT(error_of(options(8), {}, {}, launched(5, 8, 1, 4)), HasSubstr("under torchrun"));
}

TEST(Place, UnevenNodesNeedAWord) {
  const auto process = launched(1, 6, 1, 4);
  EXPECT_THAT(error_of(options(), {}, {}, process),
              HasSubstr("torchrun started 6 ranks, 4 of them on this node"));
  EXPECT_EQ(resolve_place(options({}, 1), {}, {}, process).nodes, 1);
}

TEST(Place, OneVisibleGpuPerTaskIsDeviceZero) {
  const Place place = resolve_place(options(), {kH200}, {}, launched(3, 4, 3, 4));
  EXPECT_EQ(place.devices().at(0), c10::Device(c10::kCUDA, 0));
}

TEST(Place, RanksSpreadEvenlyOverNodes) {
  EXPECT_THAT(error_of(options(4, 3), {}), HasSubstr("4 ranks (--ranks) cannot be spread evenly"));
  EXPECT_EQ(resolve_place(options(4, 2), {}, {}, {}).nodes, 2);
}

TEST(Place, CudaThatIsAskedForAndMissingIsAnError) {
  RunOptions o = options();
  o.device = "cuda";
  EXPECT_THAT(error_of(o, {}), HasSubstr("--device cuda"));
}

}  // namespace
}  // namespace reknit
