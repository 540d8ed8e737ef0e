#include "reknit/comm/fault.h"

#include "reknit/base/error.h"
#include "reknit/base/rank.h"
#include "reknit/comm/threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reknit {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

/// Runs `body` on two thread ranks under `plan`.
void run(const FaultPlan& plan, const std::function<void(Communicator&)>& body,
         std::chrono::milliseconds timeout = 10s) {
  auto group = make_thread_group(2, {.name = "pair", .timeout = timeout});
  for (auto& rank : group) {
    rank = make_fault(std::move(rank), plan);
  }
  run_ranks(
      {c10::kCPU, c10::kCPU}, [&](int rank) { body(*group[rank]); },
      [&](const std::string& reason) { group[0]->abort(reason); });
}

at::Tensor ones() {
  return at::ones({2});
}

TEST(Fault, APlannedFailureIsTheErrorOfTheRankAndFreesTheOther) {
  const auto plan = [](CommKind kind, int64_t index, int rank) {
    return Fault{.fail = kind == CommKind::kAllReduce && index == 1 && rank == 1};
  };
  std::string sentence;
  try {
    run(plan, [](Communicator& comm) {
      comm.barrier();
      comm.all_reduce({ones()}, ReduceOp::kSum, Stream()).wait(Stream());
    });
  } catch (const AbortedError& error) {
    FAIL() << "the echo, not the first error: " << error.what();
  } catch (const CommError& error) {
    sentence = error.what();
  }
  EXPECT_THAT(sentence, HasSubstr("group pair: all_reduce #1 failed on rank 1 as planned"));
}

TEST(Fault, AnAbsentRankIsNamedByTheOthers) {
  const auto plan = [](CommKind, int64_t index, int rank) {
    return Fault{.never_join = index == 1 && rank == 0};
  };
  run(
      plan,
      [](Communicator& comm) {
        comm.barrier();
        try {
          comm.barrier();
          FAIL() << "the barrier passed";
        } catch (const CommError& error) {
          EXPECT_THAT(error.what(), HasSubstr("barrier #1"));
          EXPECT_THAT(error.what(), HasSubstr("ranks missing: 0 of 2"));
        }
      },
      200ms);
}

TEST(Fault, ACorruptedResultIsSeenOnlyWhereItWasPlanned) {
  const auto plan = [](CommKind, int64_t index, int rank) {
    Fault fault;
    if (index == 0 && rank == 1) {
      fault.corrupt = [](at::Tensor& tensor) {
        tensor[0] = std::numeric_limits<float>::infinity();
      };
    }
    return fault;
  };
  run(plan, [](Communicator& comm) {
    auto first = comm.all_reduce({ones()}, ReduceOp::kSum, Stream()).wait(Stream());
    EXPECT_EQ(first[0].isinf().any().item<bool>(), comm.rank() == 1);
    auto second = comm.all_reduce({ones()}, ReduceOp::kSum, Stream()).wait(Stream());
    EXPECT_FALSE(second[0].isinf().any().item<bool>());
  });
}

TEST(Fault, DelayedResultsComeOutOfOrder) {
  constexpr auto kDelay = 1s;
  const auto plan = [&](CommKind, int64_t index, int) {
    return Fault{.delay_result = index == 0 ? kDelay : 0s};
  };
  run(plan, [&](Communicator& comm) {
    const auto start = std::chrono::steady_clock::now();
    auto slow = comm.all_reduce({ones()}, ReduceOp::kSum, Stream());
    (void)slow.ready();  // starts its delay if the other rank has joined
    auto fast = comm.all_reduce({ones()}, ReduceOp::kSum, Stream());
    std::move(fast).wait(Stream());
    EXPECT_FALSE(slow.ready());
    EXPECT_LT(std::chrono::steady_clock::now() - start, kDelay);
    std::move(slow).wait(Stream());
    EXPECT_GE(std::chrono::steady_clock::now() - start, kDelay);
  });
}

TEST(Fault, SplitGroupsFollowThePlanToo) {
  const auto plan = [](CommKind kind, int64_t, int) {
    return Fault{.fail = kind == CommKind::kAllGather};
  };
  run(plan, [](Communicator& comm) {
    auto alone = comm.split({comm.rank()}, "alone");
    const at::Tensor full = ones();
    EXPECT_THROW((void)alone->all_gather(full, {{full, full}}, Stream()), CommError);
  });
}

}  // namespace
}  // namespace reknit
