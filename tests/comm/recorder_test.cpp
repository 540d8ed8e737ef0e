// What a recorder says of collectives: their times, and who came last.
#include "reknit/comm/recorder.h"

#include "reknit/base/error.h"
#include "reknit/base/rank.h"
#include "tests/comm/backends.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace reknit::test {
namespace {

using namespace std::chrono_literals;

at::Tensor ones(int64_t length) {
  return at::ones({length}, at::TensorOptions(at::kFloat).device(this_rank().device));
}

void reduce(Communicator& comm, int64_t length = 4) {
  const Stream& stream = this_rank().compute;
  comm.all_reduce({ones(length)}, ReduceOp::kSum, stream).wait(stream);
}

class Recorded : public testing::TestWithParam<Backend> {
 protected:
  void run(const std::function<void(Communicator&)>& body) {
    GetParam().run({.name = "world", .timeout = 60s}, body);
  }
};

TEST_P(Recorded, EveryOperationIsThereOnceInOrderWithItsSizeAndTime) {
  run([](Communicator& comm) {
    Recorder recorder(nullptr);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t length = 1; length <= 3; ++length) {
      reduce(comm, length);
    }
    comm.barrier();
    const auto times = recorder.collect(true);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    ASSERT_EQ(times.size(), 4u);
    double sum = 0;
    for (size_t i = 0; i < times.size(); ++i) {
      EXPECT_EQ(times[i].group, "world");
      EXPECT_EQ(times[i].group_size, comm.size());
      EXPECT_EQ(times[i].number, static_cast<int64_t>(i));
      EXPECT_EQ(times[i].kind, i < 3 ? CommKind::kAllReduce : CommKind::kBarrier);
      EXPECT_EQ(times[i].bytes, i < 3 ? 4 * (static_cast<int64_t>(i) + 1) : 0);
      EXPECT_GE(times[i].seconds, times[i].moving);
      EXPECT_GE(times[i].moving, 0);
      sum += times[i].seconds;
    }
    EXPECT_LE(sum, passed.count() + 1e-3);
    EXPECT_TRUE(recorder.collect(true).empty());
  });
}

TEST_P(Recorded, TheRankThatComesLastIsKnownWithItsDelay) {
  run([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    const int late = comm.size() - 1;
    reduce(comm);
    Recorder recorder(nullptr);
    comm.barrier();
    if (comm.rank() == late) {
      std::this_thread::sleep_for(100ms);
    }
    reduce(comm);
    const auto times = recorder.collect(true);
    ASSERT_EQ(times.size(), 2u);
    EXPECT_EQ(times[1].came_last, comm.rank() == late);
    if (comm.rank() == late) {
      EXPECT_GT(times[1].late_by, 0.05);
    } else {
      EXPECT_GT(times[1].seconds - times[1].moving, 0.05);
      EXPECT_EQ(times[1].late_by, 0);
    }
  });
}

TEST_P(Recorded, ATimeSpentBehindAnotherOperationIsCountedOnce) {
  run([](Communicator& comm) {
    Recorder recorder(nullptr);
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    if (comm.rank() != 0) {
      std::this_thread::sleep_for(60ms);
    }
    const Stream& stream = this_rank().compute;
    auto first = comm.all_reduce({ones(4)}, ReduceOp::kSum, stream);
    auto second = comm.all_reduce({ones(4)}, ReduceOp::kSum, stream);
    std::move(first).wait(stream);
    std::move(second).wait(stream);
    const auto times = recorder.collect(false);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    ASSERT_EQ(times.size(), 3u);
    EXPECT_LE(times[1].seconds + times[2].seconds, passed.count() + 1e-3);
  });
}

TEST_P(Recorded, GroupsThatWereSplitOffAreRecordedUnderTheirNames) {
  run([](Communicator& comm) {
    Recorder recorder(nullptr);
    {
      const auto part = comm.split({comm.rank()}, "part");
      reduce(*part);
    }
    reduce(comm);
    const auto times = recorder.collect(true);
    ASSERT_EQ(times.size(), 2u);
    EXPECT_EQ(times[0].group,
              part_options({}, comm.size(), comm.rank(), {comm.rank()}, "part").name);
    EXPECT_EQ(times[1].group, "world");
  });
}

TEST_P(Recorded, WhatFollowsARecorderIsNotRecordedAndANewOneBeginsAnew) {
  run([](Communicator& comm) {
    {
      Recorder recorder(nullptr);
      reduce(comm);
    }
    EXPECT_EQ(Recorder::current(), nullptr);
    reduce(comm);
    Recorder recorder(nullptr);
    reduce(comm);
    EXPECT_EQ(recorder.collect(true).size(), 1u);
  });
}

TEST(RecordedThreads, AThreadHasOneRecorderAtATime) {
  const RankScope scope(0, 1, c10::kCPU);
  Recorder first(nullptr);
  EXPECT_THROW(Recorder second(nullptr), StateError);
  EXPECT_EQ(Recorder::current(), &first);
}

TEST(RecordedThreads, ATraceHasOperationsThatNeverEnded) {
  const std::vector<Backend> all = backends();
  const auto threads = std::find_if(all.begin(), all.end(), [](const Backend& backend) {
    return backend.name == "threads" && backend.size == 3;
  });
  ASSERT_NE(threads, all.end());
  std::atomic<int> begun{0};
  threads->run({.name = "world", .timeout = 60s}, [&](Communicator& comm) {
    Trace trace(comm.rank());
    {
      Recorder recorder(&trace);
      reduce(comm);
      if (comm.rank() != 0) {
        auto pending = comm.all_reduce({ones(1)}, ReduceOp::kSum, this_rank().compute);
        ++begun;
        EXPECT_THROW(std::move(pending).wait(Stream()), CommError);
      } else {
        while (begun < 2) {
          std::this_thread::yield();
        }
        comm.abort("enough");
      }
    }
    EXPECT_EQ(trace.events().find("not finished") != std::string::npos, comm.rank() != 0);
  });
}

INSTANTIATE_TEST_SUITE_P(AllBackends, Recorded, testing::ValuesIn(backends()),
                         [](const testing::TestParamInfo<Backend>& info) {
                           return info.param.name + "_" + std::to_string(info.param.size);
                         });

}  // namespace
}  // namespace reknit::test
