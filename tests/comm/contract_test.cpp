// What every backend promises, on every backend.
#include "tests/comm/backends.h"

#include "reknit/base/error.h"
#include "reknit/base/rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace reknit::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<at::ScalarType> kTypes{at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                         at::kByte};

/// `length` numbers that tell rank and place; small enough to be exact in any dtype.
at::Tensor values(int rank, int64_t length, at::ScalarType type = at::kFloat) {
  const at::Tensor places = at::arange(length, at::kLong);
  return (places.remainder(7) + rank + 1).to(this_rank().device, type);
}

at::Tensor zeros(int64_t length, at::ScalarType type = at::kFloat) {
  return at::zeros({length}, at::TensorOptions(type).device(this_rank().device));
}

const Stream& stream() {
  return this_rank().compute;
}

void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_TRUE(at::equal(actual.cpu(), expected.cpu())) << actual << "\n" << expected;
}

/// The sum over ranks of values(rank, length).
at::Tensor sum_of_values(int size, int64_t length, at::ScalarType type = at::kFloat) {
  at::Tensor sum = at::zeros({length}, at::kFloat);
  for (int rank = 0; rank < size; ++rank) {
    sum += values(rank, length).cpu();
  }
  return sum.to(type);
}

at::Tensor gathered_values(int size, int64_t length, at::ScalarType type = at::kFloat) {
  std::vector<at::Tensor> pieces;
  for (int rank = 0; rank < size; ++rank) {
    pieces.push_back(values(rank, length, type));
  }
  return at::cat(pieces);
}

template <class Body>
std::string comm_error_of(const Body& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class Contract : public testing::TestWithParam<Backend> {
 protected:
  int size() const { return GetParam().size; }
  void run(const std::function<void(Communicator&)>& body,
           std::chrono::milliseconds timeout = 60s) const {
    GetParam().run(CommOptions{.name = "test", .timeout = timeout}, body);
  }
};

TEST_P(Contract, KnowsItsPlace) {
  run([&](Communicator& comm) {
    EXPECT_EQ(comm.size(), size());
    EXPECT_EQ(comm.rank(), this_rank().rank);
    EXPECT_EQ(comm.options().name, "test");
  });
}

TEST_P(Contract, AllGatherPutsEveryShardInItsPlace) {
  run([&](Communicator& comm) {
    for (auto type : kTypes) {
      at::Tensor full = zeros(5 * size(), type);
      const at::Tensor shard = values(comm.rank(), 5, type);
      full = comm.all_gather(full, {{full, shard}}, stream()).wait(stream());
      expect_equal(full, gathered_values(size(), 5, type));
    }
  });
}

TEST_P(Contract, AllGatherWorksInPlace) {
  run([&](Communicator& comm) {
    at::Tensor full = zeros(4 * size());
    at::Tensor shard = full.narrow(0, 4 * comm.rank(), 4);
    shard.copy_(values(comm.rank(), 4));
    comm.all_gather(full, {{full, shard}}, stream()).wait(stream());
    expect_equal(full, gathered_values(size(), 4));
  });
}

TEST_P(Contract, AGroupedAllGatherIsOneOperation) {
  run([&](Communicator& comm) {
    std::vector<GatherPair> pairs;
    for (auto type : kTypes) {
      pairs.push_back({zeros(3 * size(), type), values(comm.rank(), 3, type)});
    }
    pairs.push_back({zeros(0), zeros(0)});
    pairs = comm.all_gather(pairs, pairs, stream()).wait(stream());
    for (size_t i = 0; i < kTypes.size(); ++i) {
      expect_equal(pairs[i].full, gathered_values(size(), 3, kTypes[i]));
    }
    EXPECT_EQ(comm.counts().all_gather.count, 1);
    EXPECT_EQ(comm.counts().all_gather.bytes, 3 * size() * (4 + 2 + 2 + 8 + 1));
  });
}

TEST_P(Contract, ReduceScatterGivesEachRankItsPieceOfTheSum) {
  run([&](Communicator& comm) {
    for (auto type : kTypes) {
      const at::Tensor full = values(comm.rank(), 5 * size(), type);
      at::Tensor shard = zeros(5, type);
      comm.reduce_scatter(full, {{full, shard}}, stream()).wait(stream());
      expect_equal(shard, sum_of_values(size(), 5 * size(), type).narrow(0, 5 * comm.rank(), 5));
    }
  });
}

TEST_P(Contract, ReduceScatterWorksInPlaceAndGrouped) {
  run([&](Communicator& comm) {
    std::vector<ScatterPair> pairs;
    for (auto type : {at::kFloat, at::kHalf}) {
      const at::Tensor full = values(comm.rank(), 4 * size(), type);
      pairs.push_back({full, full.narrow(0, 4 * comm.rank(), 4)});
    }
    comm.reduce_scatter(pairs, pairs, stream()).wait(stream());
    for (const ScatterPair& pair : pairs) {
      expect_equal(
          pair.shard,
          sum_of_values(size(), 4 * size(), pair.full.scalar_type()).narrow(0, 4 * comm.rank(), 4));
    }
    EXPECT_EQ(comm.counts().reduce_scatter.count, 1);
    EXPECT_EQ(comm.counts().reduce_scatter.bytes, 4 * size() * (4 + 2));
  });
}

TEST_P(Contract, AllReduceSumsAndTakesMaxima) {
  run([&](Communicator& comm) {
    for (auto type : kTypes) {
      auto sums = comm.all_reduce({values(comm.rank(), 6, type), values(comm.rank(), 1, type)},
                                  ReduceOp::kSum, stream())
                      .wait(stream());
      expect_equal(sums[0], sum_of_values(size(), 6, type));
      expect_equal(sums[1], sum_of_values(size(), 1, type));
      auto maxima =
          comm.all_reduce({values(comm.rank(), 6, type)}, ReduceOp::kMax, stream()).wait(stream());
      expect_equal(maxima[0], values(size() - 1, 6, type));
    }
  });
}

TEST_P(Contract, AllReduceIsBitEqualOnAllRanks) {
  run([&](Communicator& comm) {
    for (auto type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor mine = (values(comm.rank(), 33).div(3).sin()).to(type);
      auto sum = comm.all_reduce({mine}, ReduceOp::kSum, stream()).wait(stream());
      at::Tensor all = zeros(33 * size(), type);
      comm.all_gather(all, {{all, sum[0]}}, stream()).wait(stream());
      for (int rank = 0; rank < size(); ++rank) {
        expect_equal(all.narrow(0, 33 * rank, 33), sum[0]);
      }
    }
  });
}

TEST_P(Contract, BroadcastReachesAllFromAnyRoot) {
  run([&](Communicator& comm) {
    for (int root = 0; root < size(); ++root) {
      auto tensors = comm.broadcast({values(comm.rank(), 4), values(comm.rank(), 3, at::kByte)},
                                    root, stream())
                         .wait(stream());
      expect_equal(tensors[0], values(root, 4));
      expect_equal(tensors[1], values(root, 3, at::kByte));
    }
    EXPECT_EQ(comm.counts().broadcast.count, size());
  });
}

TEST_P(Contract, AllToAllTransposesPieces) {
  run([&](Communicator& comm) {
    const int rank = comm.rank();
    const at::Tensor in = values(rank, 3 * size());
    at::Tensor out = comm.all_to_all(zeros(3 * size()), in, stream()).wait(stream());
    for (int source = 0; source < size(); ++source) {
      expect_equal(out.narrow(0, 3 * source, 3), values(source, 3 * size()).narrow(0, 3 * rank, 3));
    }
  });
}

TEST_P(Contract, EmptyTensorsAndEmptyGroupsPass) {
  run([&](Communicator& comm) {
    const at::Tensor empty = zeros(0);
    comm.all_gather(empty, {{empty, empty}}, stream()).wait(stream());
    comm.reduce_scatter(empty, {{empty, empty}}, stream()).wait(stream());
    comm.all_gather(0, {}, stream()).wait(stream());
    comm.all_reduce({}, ReduceOp::kSum, stream()).wait(stream());
    comm.broadcast({empty}, 0, stream()).wait(stream());
    comm.all_to_all(empty, zeros(0), stream()).wait(stream());
    comm.barrier();
    expect_equal(comm.all_reduce({values(0, 2)}, ReduceOp::kSum, stream()).wait(stream())[0],
                 values(0, 2) * size());
  });
}

TEST_P(Contract, WrongArgumentsAreRefusedOnTheSpot) {
  run([&](Communicator& comm) {
    const at::Tensor full = zeros(2 * size() + 1);
    const at::Tensor shard = zeros(2);
    EXPECT_THROW((void)comm.all_gather(0, {{full, shard}}, stream()), StateError);
    EXPECT_THROW((void)comm.reduce_scatter(0, {{full, shard}}, stream()), StateError);
    EXPECT_THROW((void)comm.broadcast({shard}, size(), stream()), StateError);
    EXPECT_THROW((void)comm.all_reduce({zeros(4).view({2, 2}).t()}, ReduceOp::kSum, stream()),
                 StateError);
    comm.barrier();
  });
}

TEST_P(Contract, ManyInFlightComeOutInAnyOrder) {
  run([&](Communicator& comm) {
    std::vector<Pending<std::vector<at::Tensor>>> pending;
    for (int i = 0; i < 20; ++i) {
      pending.push_back(comm.all_reduce({values(comm.rank() + i, 3)}, ReduceOp::kSum, stream()));
    }
    for (int i = 19; i >= 0; --i) {
      auto result = std::move(pending[i]).wait(stream());
      expect_equal(result[0], sum_of_values(size(), 3) + i * size());
    }
  });
}

TEST_P(Contract, OrderHoldsUnderRandomDelays) {
  run([&](Communicator& comm) {
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds((comm.rank() * 131 + i * 977) % 1500));
      auto sum = comm.all_reduce({values(comm.rank() + i, 2)}, ReduceOp::kSum, stream());
      at::Tensor full = zeros(2 * size());
      auto gather = comm.all_gather(full, {{full, values(comm.rank(), 2)}}, stream());
      expect_equal(std::move(gather).wait(stream()), gathered_values(size(), 2));
      expect_equal(std::move(sum).wait(stream())[0], sum_of_values(size(), 2) + i * size());
    }
  });
}

TEST_P(Contract, ReadyTurnsTrue) {
  run([&](Communicator& comm) {
    auto sum = comm.all_reduce({values(comm.rank(), 2)}, ReduceOp::kSum, stream());
    while (!sum.ready()) {
      std::this_thread::sleep_for(1ms);
    }
    std::move(sum).wait(stream());
  });
}

// first, first + step, .. below size.
std::vector<int> ranks_from(int first, int step, int size) {
  std::vector<int> ranks;
  for (int rank = first; rank < size; rank += step) {
    ranks.push_back(rank);
  }
  return ranks;
}

TEST_P(Contract, SplitMakesUnevenGroups) {
  run([&](Communicator& comm) {
    const bool alone = comm.rank() == 0;
    auto part = comm.split(alone ? std::vector{0} : ranks_from(1, 1, size()), "part");
    EXPECT_EQ(part->options().name, alone ? "part.0" : "part.1");
    EXPECT_EQ(part->size(), alone ? 1 : size() - 1);
    EXPECT_EQ(part->rank(), alone ? 0 : comm.rank() - 1);
    auto sum = part->all_reduce({values(comm.rank(), 2)}, ReduceOp::kSum, stream()).wait(stream());
    expect_equal(sum[0], alone ? values(0, 2) : sum_of_values(size(), 2) - values(0, 2).cpu());
    auto again = part->split(ranks_from(0, 1, part->size()), "again");
    again->barrier();
    EXPECT_EQ(again->rank(), part->rank());
  });
}

TEST_P(Contract, SplitNumbersItsRanksAsTheMembersAreListed) {
  run([&](Communicator& comm) {
    std::vector<int> backwards = ranks_from(0, 1, size());
    std::reverse(backwards.begin(), backwards.end());
    auto part = comm.split(backwards, "part");
    EXPECT_EQ(part->rank(), size() - 1 - comm.rank());
    const at::Tensor mine = values(comm.rank(), 2);
    const at::Tensor full = at::empty({2 * size()}, mine.options());
    const at::Tensor all = part->all_gather(full, {{full, mine}}, stream()).wait(stream());
    for (int rank = 0; rank < size(); ++rank) {
      expect_equal(all.narrow(0, 2 * (size() - 1 - rank), 2), values(rank, 2));
    }
  });
}

TEST_P(Contract, SplitOfAListWithoutTheRankIsRefused) {
  run([&](Communicator& comm) {
    EXPECT_THROW(comm.split({size()}, "part"), StateError);
    EXPECT_THROW(comm.split({comm.rank(), comm.rank()}, "part"), StateError);
    EXPECT_THROW(comm.split({}, "part"), StateError);
    comm.barrier();
  });
}

TEST_P(Contract, SplitWithContradictingListsFailsTheGroup) {
  if (size() < 3 || GetParam().name.starts_with("nccl")) {
    GTEST_SKIP() << "needs three ranks that see each other's arguments";
  }
  run([&](Communicator& comm) {
    const std::string sentence = comm_error_of([&] {
      comm.split(comm.rank() == 0 ? std::vector{0, 1} : ranks_from(0, 1, size()), "part");
    });
    EXPECT_THAT(sentence, HasSubstr("ranks disagree on split #0"));
  });
}

TEST_P(Contract, ManyGroupsWorkAtOnce) {
  run([&](Communicator& comm) {
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int i = 0; i < 3; ++i) {
      groups.push_back(comm.split(ranks_from(0, 1, size()), str("all", i)));
      groups.push_back(comm.split(ranks_from(comm.rank() % 2, 2, size()), str("parity", i)));
    }
    std::vector<Pending<std::vector<at::Tensor>>> pending;
    for (auto& group : groups) {
      pending.push_back(group->all_reduce({values(comm.rank(), 2)}, ReduceOp::kSum, stream()));
    }
    for (size_t i = 0; i < pending.size(); i += 2) {
      expect_equal(std::move(pending[i]).wait(stream())[0], sum_of_values(size(), 2));
    }
    for (size_t i = 1; i < pending.size(); i += 2) {
      std::move(pending[i]).wait(stream());
    }
    comm.barrier();
  });
}

/// Joins nothing until the group has failed.
void stay_away(Communicator& comm) {
  for (int look = 0; look < 60'000; ++look) {
    comm.require_alive();
    std::this_thread::sleep_for(1ms);
  }
}

TEST_P(Contract, ARankThatNeverJoinsIsNamedAfterTheTimeout) {
  if (size() == 1) {
    GTEST_SKIP() << "needs a second rank";
  }
  const auto patience = GetParam().patience;
  run(
      [&](Communicator& comm) {
        comm.barrier();
        if (comm.rank() == size() - 1) {
          EXPECT_THAT(comm_error_of([&] { stay_away(comm); }), HasSubstr("timed out"));
          return;
        }
        const std::string sentence = comm_error_of(
            [&] { comm.all_reduce({values(0, 2)}, ReduceOp::kSum, stream()).wait(Stream()); });
        EXPECT_THAT(sentence,
                    AllOf(HasSubstr(str("group test: all_reduce #1 timed out after ",
                                        static_cast<double>(patience.count()) / 1000, " s")),
                          HasSubstr(str("ranks missing: ", size() - 1, " of ", size()))));
      },
      patience);
}

TEST_P(Contract, ADroppedResultFailsTheGroup) {
  if (size() == 1) {
    GTEST_SKIP() << "needs a second rank";
  }
  run([&](Communicator& comm) {
    if (comm.rank() == 0) {
      comm.barrier();
      { auto dropped = comm.all_reduce({values(0, 2)}, ReduceOp::kSum, stream()); }
      EXPECT_THROW(comm.barrier(), CommError);
      std::this_thread::sleep_for(300ms);
      return;
    }
    const std::string sentence = comm_error_of([&] {
      comm.barrier();  // a slow rank hears of it here already
      comm.all_reduce({values(0, 2)}, ReduceOp::kSum, stream()).wait(Stream());
      comm.barrier();
    });
    EXPECT_THAT(sentence, HasSubstr("rank 0 dropped the result of all_reduce #1"));
  });
}

TEST_P(Contract, AbortFreesAllWaitsAtOnceAndTheFirstReasonWins) {
  run([&](Communicator& comm) {
    auto part = comm.split(ranks_from(0, 1, size()), "part");
    const auto start = std::chrono::steady_clock::now();
    if (comm.rank() == 0) {
      std::this_thread::sleep_for(100ms);
      comm.abort("rank 0 lost its nerve");
      comm.abort("too late");
      std::this_thread::sleep_for(300ms);
    } else {
      EXPECT_THAT(comm_error_of([&] { part->barrier(); }), HasSubstr("rank 0 lost its nerve"));
    }
    EXPECT_THAT(comm_error_of([&] { comm.barrier(); }), HasSubstr("rank 0 lost its nerve"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  });
}

TEST_P(Contract, TheHostsWaitForAStreamThrowsWhatTheGroupWasAbortedWith) {
  run([&](Communicator& comm) {
    comm.synchronize(stream());
    EXPECT_THAT(comm_error_of([&] {
                  comm.barrier();  // may hear of the end already
                  if (comm.rank() == 0) {
                    comm.abort("a planned end");
                  }
                  for (int look = 0; look < 20'000; ++look) {
                    comm.synchronize(stream());
                    std::this_thread::sleep_for(1ms);
                  }
                }),
                HasSubstr("a planned end"));
  });
}

TEST_P(Contract, RanksThatDisagreeFailWithBothSidesNamed) {
  if (size() == 1 || GetParam().name.starts_with("nccl")) {
    GTEST_SKIP() << "needs ranks that see each other's arguments";
  }
  run([&](Communicator& comm) {
    const std::string sentence = comm_error_of([&] {
      comm.barrier();
      if (comm.rank() == 1) {
        comm.broadcast({values(0, 2)}, 0, stream()).wait(Stream());
      } else {
        comm.all_reduce({values(0, 3)}, ReduceOp::kMax, stream()).wait(Stream());
      }
    });
    EXPECT_THAT(sentence, AllOf(HasSubstr("group test: ranks disagree on operation #1"),
                                HasSubstr("joins all_reduce(max) of Float 3"),
                                HasSubstr("joins broadcast(from rank 0) of Float 2")));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Contract, testing::ValuesIn(backends()), [](const auto& info) {
  return str(info.param.name, "_", info.param.size);
});

}  // namespace
}  // namespace reknit::test
