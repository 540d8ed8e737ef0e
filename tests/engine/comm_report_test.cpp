#include "reknit/engine/comm_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reknit {
namespace {

using testing::HasSubstr;

CommTime time_of(CommKind kind, int64_t bytes, double seconds, double moving, int ranks = 4) {
  return {.group = "world",
          .group_size = ranks,
          .kind = kind,
          .bytes = bytes,
          .seconds = seconds,
          .moving = moving};
}

TEST(CommLog, BandwidthsAreTheFieldsFormulasOfTheTimeWithoutWaiting) {
  // nccl-tests' doc/PERFORMANCE.md, 4 ranks: S / t times 3/4, 3/4, 6/4, 3/4 and 1.
  const std::map<CommKind, double> factors{{CommKind::kAllGather, 0.75},
                                           {CommKind::kReduceScatter, 0.75},
                                           {CommKind::kAllReduce, 1.5},
                                           {CommKind::kAllToAll, 0.75},
                                           {CommKind::kBroadcast, 1}};
  for (const auto& [kind, factor] : factors) {
    CommRow row;
    row.add(time_of(kind, 8'000'000'000, 5, 2));
    EXPECT_DOUBLE_EQ(row.algorithm_bandwidth(), 4e9) << name_of(kind);
    EXPECT_DOUBLE_EQ(row.bus_bandwidth(), 4e9 * factor) << name_of(kind);
    CommRow alone;
    alone.add(time_of(kind, 8'000'000'000, 2, 2, 1));
    EXPECT_EQ(alone.bus_bandwidth(), 0) << name_of(kind);
  }
}

TEST(CommLog, RowsAreByOperationAndSizeAndSumOverSteps) {
  CommLog log;
  for (int step = 0; step < 2; ++step) {
    log.add(
        {time_of(CommKind::kAllGather, 1000, 0.003, 0.001),
         time_of(CommKind::kAllGather, 2000, 0.001, 0.001),
         time_of(CommKind::kAllGather, 1000, 0.001, 0.001), time_of(CommKind::kBarrier, 0, 0.5, 0)},
        {{0.002, 0, 0}, {0, 1, 0.002}});
  }
  const auto json = log.json();
  ASSERT_EQ(json.at("operations").size(), 3u);
  const auto& row = json.at("operations")[0];
  EXPECT_EQ(row.at("operation"), "all_gather");
  EXPECT_EQ(row.at("message_bytes"), 1000);
  EXPECT_EQ(row.at("count"), 4);
  EXPECT_NEAR(row.at("seconds").get<double>(), 0.008, 1e-12);
  EXPECT_NEAR(row.at("waiting_s").get<double>(), 0.004, 1e-12);
  EXPECT_NEAR(row.at("algbw").get<double>(), 0.001, 1e-12);
  EXPECT_NEAR(row.at("busbw").get<double>(), 0.00075, 1e-12);
  EXPECT_EQ(json.at("ranks")[1].at("last"), 2);
  EXPECT_THAT(log.table(), HasSubstr("all_gather        1.00 kB        4       8.000      2.0000"));
  auto comm = nlohmann::ordered_json{{"all_gather", {{"count", 3}, {"bytes", 4000}}}};
  log.extend(comm);
  EXPECT_EQ(comm.at("all_gather").at("count"), 3);
  EXPECT_NEAR(comm.at("all_gather").at("seconds").get<double>(), 0.005, 1e-12);
  EXPECT_EQ(log.straggler().at("rank"), 1);
}

TEST(CommLog, TakesOnlyTheOperationsThatAreAskedFor) {
  CommLog log(std::vector<std::string>{"barrier"});
  log.add({time_of(CommKind::kAllGather, 1000, 1, 1), time_of(CommKind::kBarrier, 0, 1, 1)}, {});
  ASSERT_EQ(log.json().at("operations").size(), 1u);
  EXPECT_EQ(log.json().at("operations")[0].at("operation"), "barrier");
  EXPECT_TRUE(log.straggler().is_null());
  EXPECT_TRUE(CommLog(std::vector<std::string>{}).takes(CommKind::kBarrier) == false);
}

}  // namespace
}  // namespace reknit
