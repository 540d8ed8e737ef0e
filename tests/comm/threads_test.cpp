// What only the thread backend can be made to do.
#include "reknit/comm/threads.h"

#include "reknit/base/error.h"
#include "reknit/base/rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

namespace reknit {
namespace {

using testing::HasSubstr;

TEST(Threads, NoRankTakesTheResultOfAnOperationThatFailed) {
  constexpr int kRanks = 6;
  std::atomic<int> own = 0;
  for (int round = 0; round < 200; ++round) {
    auto group = make_thread_group(kRanks, {.name = "g"});
    run_ranks(std::vector<c10::Device>(kRanks, c10::kCPU), [&](int rank) {
      // Complex numbers have no order.
      const at::Tensor numbers = at::ones({3}, at::kComplexFloat);
      try {
        group[rank]->all_reduce({numbers}, ReduceOp::kMax, Stream()).wait(Stream());
        ADD_FAILURE() << "rank " << rank << " was given a result in round " << round;
      } catch (const AbortedError& error) {
        EXPECT_THAT(error.what(), HasSubstr("group g: all_reduce(max)"));
      } catch (const CommError& error) {
        ++own;
        EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
      }
    });
  }
  EXPECT_EQ(own, 200) << "one rank of each group has found the error";
}

}  // namespace
}  // namespace reknit
