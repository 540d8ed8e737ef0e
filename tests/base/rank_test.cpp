// What starting ranks promises where one of them fails.
#include "reknit/base/rank.h"

#include "reknit/base/error.h"
#include "tests/support/no_more_threads.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

namespace reknit {
namespace {

using testing::HasSubstr;

std::vector<c10::Device> cpus(int count) {
  return std::vector<c10::Device>(count, c10::kCPU);
}

TEST(RunRanks, TellsTheOthersOneSentenceOfAnErrorFromLibtorch) {
  std::string reason;
  const auto fail = [](int rank) { TORCH_CHECK(rank != 1, "the second rank fails"); };
  EXPECT_THROW(run_ranks(cpus(2), fail, [&](const std::string& text) { reason = text; }),
               c10::Error);
  EXPECT_EQ(reason, "the second rank fails");
}

TEST(RunRanks, ARankThatCannotBeStartedFreesThoseThatWereAndIsAnError) {
  constexpr int kRanks = 1000;
  std::atomic<bool> freed = false;
  std::atomic<int> started = 0;
  std::optional<NoMoreThreads> limit;
  const auto wait = [&](int rank) {
    if (rank == 0) {
      limit.emplace();
    }
    ++started;
    while (!freed && started < kRanks) {
      std::this_thread::yield();
    }
  };
  try {
    run_ranks(cpus(kRanks), wait, [&](const std::string&) { freed = true; });
    FAIL() << started << " ranks were started";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr(" of 1000 cannot be started"));
    EXPECT_THAT(error.help(), HasSubstr("fewer ranks"));
  }
  EXPECT_TRUE(freed);
  EXPECT_GE(started, 1);
}

}  // namespace
}  // namespace reknit
