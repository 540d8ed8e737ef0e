#include "reknit/comm/gloo.h"

#include "reknit/base/error.h"
#include "tests/support/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

namespace reknit::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kKilled = 128 + SIGKILL;

std::string comm_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Rank `victim` of 3 is killed while the others wait for it; they must say so soon.
void kill_one(int victim, const std::string& expected) {
  const auto place = process_place();
  if (!place) {
    std::vector<int> codes(3, 0);
    codes[victim] = kKilled;
    EXPECT_EQ(run_in_processes(3), codes);
    return;
  }
  auto group = make_gloo(*place, {.timeout = 60s});
  group->barrier();
  if (place->rank == victim) {
    std::this_thread::sleep_for(200ms);
    raise(SIGKILL);
  }
  const auto start = std::chrono::steady_clock::now();
  const std::string sentence = comm_error_of(
      [&] { group->all_reduce({at::ones({4})}, ReduceOp::kSum, Stream()).wait(Stream()); });
  EXPECT_THAT(sentence, AllOf(HasSubstr("group world: all_reduce #1"), HasSubstr(expected)));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

TEST(Gloo, AKilledProcessIsNamedByTheOthers) {
  kill_one(2, "no sign of life from the processes of ranks 2 of 3");
}

TEST(Gloo, TheOthersNoticeWhenTheProcessWhereTheyMeetIsKilled) {
  kill_one(0, "rank 0, where the job meets, has ended");
}

TEST(Gloo, AnAbortReachesAProcessThatIsNotWaiting) {
  const auto place = process_place();
  if (!place) {
    EXPECT_EQ(run_in_processes(2), std::vector<int>(2, 0));
    return;
  }
  auto group = make_gloo(*place);
  auto part = group->split({0, 1}, "part");
  part->barrier();
  if (place->rank == 1) {
    group->abort("rank 1 cannot read its file");
    std::this_thread::sleep_for(500ms);
  } else {
    std::this_thread::sleep_for(400ms);
    EXPECT_THAT(comm_error_of([&] { part->barrier(); }), HasSubstr("cannot read its file"));
  }
}

TEST(Gloo, StartUpNamesTheRanksThatNeverCame) {
  const auto place = process_place();
  if (!place) {
    EXPECT_EQ(run_in_processes(2), std::vector<int>(2, 0));
    return;
  }
  Rendezvous larger = *place;
  larger.world = 4;
  // Rank 0 serves the meeting place: it gives up last.
  const auto timeout = place->rank == 0 ? 5000ms : 3000ms;
  EXPECT_THAT(comm_error_of([&] { make_gloo(larger, {.timeout = timeout}); }),
              AllOf(HasSubstr("start-up"), HasSubstr("ranks missing: 2, 3 of 4")));
}

TEST(Gloo, StartUpWithoutAMeetingPlaceEndsWithItsTimeout) {
  const auto place = process_place();
  if (!place) {
    EXPECT_EQ(run_in_processes(2), std::vector<int>(2, 0));
    return;
  }
  if (place->rank == 0) {
    return;  // nobody serves
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(comm_error_of([&] { make_gloo(*place, {.timeout = 4s}); }),
              AllOf(HasSubstr("start-up"), HasSubstr("ranks missing: 0 of 2")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 7s);
}

TEST(Gloo, SeveralWorldsShareOneMeetingPlace) {
  const auto place = process_place();
  if (!place) {
    EXPECT_EQ(run_in_processes(2), std::vector<int>(2, 0));
    return;
  }
  auto gather = make_gloo(*place, {.name = "gather"});
  auto reduce = make_gloo(*place, {.name = "reduce"});
  auto first = gather->all_reduce({at::ones({2})}, ReduceOp::kSum, Stream());
  auto second = reduce->all_reduce({at::ones({2})}, ReduceOp::kSum, Stream());
  EXPECT_EQ(std::move(second).wait(Stream())[0].sum().item<float>(), 4);
  EXPECT_EQ(std::move(first).wait(Stream())[0].sum().item<float>(), 4);
}

}  // namespace
}  // namespace reknit::test
