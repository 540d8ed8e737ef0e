#include "reknit/comm/gloo.h"

#include "reknit/base/error.h"
#include "tests/support/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
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
  kill_one(0, "which the process of rank 0 serves, has ended");
}

/// Stops this process as a shell's `kill -STOP` does; it goes on after `length`.
void stop_for(std::chrono::seconds length) {
  const pid_t self = getpid();
  if (fork() == 0) {
    sleep(static_cast<unsigned>(length.count()));
    kill(self, SIGCONT);
    _exit(0);
  }
  raise(SIGSTOP);
}

/// Rank `victim` of 3 is stopped while the others wait for it; they must say so at their
/// timeout, and the stopped one must end with an error too when it goes on.
void stop_one(int victim, std::chrono::seconds length, const std::string& expected) {
  const auto place = process_place();
  if (!place) {
    EXPECT_EQ(run_in_processes(3), std::vector<int>(3, 0));
    return;
  }
  auto group = make_gloo(*place, {.timeout = 2s});
  group->barrier();
  std::string wanted = str("all_reduce #1 timed out after 2 s: ", expected);
  if (place->rank == victim) {
    std::this_thread::sleep_for(100ms);
    stop_for(length);
    wanted = "all_reduce #1";
  }
  const auto start = std::chrono::steady_clock::now();
  const std::string sentence = comm_error_of([&] {
    group->all_reduce({at::ones({4})}, ReduceOp::kSum, Stream()).wait(Stream());
    group->barrier();
  });
  group.reset();
  EXPECT_THAT(sentence, AllOf(HasSubstr("group world: "), HasSubstr(wanted)));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 7s);
}

TEST(Gloo, AStoppedProcessIsNamedByTheOthers) {
  stop_one(1, 4s, "ranks missing: 1 of 3");
}

TEST(Gloo, TheOthersEndWhenTheProcessThatServesTheStoreIsStopped) {
  stop_one(0, 7s, "the store at 127.0.0.1:");
}

TEST(Gloo, AStopShorterThanTheTimeoutDoesNoHarm) {
  const auto place = process_place();
  if (!place) {
    EXPECT_EQ(run_in_processes(2), std::vector<int>(2, 0));
    return;
  }
  auto group = make_gloo(*place, {.timeout = 60s});
  group->barrier();
  if (place->rank == 0) {
    stop_for(4s);
  }
  group->barrier();
  group->split({0, 1}, "part")->barrier();
}

TEST(Gloo, StartUpEndsWithItsTimeoutWhereTheMeetingPlaceIsStopped) {
  const auto place = process_place();
  if (!place) {
    EXPECT_EQ(run_in_processes(2), std::vector<int>(2, 0));
    return;
  }
  Rendezvous larger = *place;
  larger.world = 3;
  if (place->rank == 0) {
    std::thread stop([] {
      std::this_thread::sleep_for(300ms);
      stop_for(7s);
    });
    EXPECT_THAT(comm_error_of([&] { make_gloo(larger, {.timeout = 1s}); }), HasSubstr("start-up"));
    stop.join();
    return;
  }
  std::this_thread::sleep_for(600ms);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(comm_error_of([&] { make_gloo(larger, {.timeout = 1s}); }),
              AllOf(HasSubstr("start-up"), HasSubstr("ranks missing: 0 of 3")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 6s);
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

TEST(Gloo, AMeetingPlaceThatAnotherProcessHoldsIsNamed) {
  const int holder = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 place{};
  place.sin6_family = AF_INET6;
  socklen_t size = sizeof(place);
  auto* address = reinterpret_cast<sockaddr*>(&place);
  ASSERT_EQ(::bind(holder, address, size), 0);
  ASSERT_EQ(::listen(holder, 1), 0);
  ASSERT_EQ(::getsockname(holder, address, &size), 0);
  const int port = ntohs(place.sin6_port);
  const Rendezvous rendezvous{.host = "localhost", .port = port, .rank = 0, .world = 2};
  EXPECT_THAT(comm_error_of([&] { make_gloo(rendezvous, {.timeout = 1s}); }),
              AllOf(HasSubstr("timed out after 1 s"),
                    HasSubstr("port " + std::to_string(port) + " is taken by another process")));
  ::close(holder);
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
