// Ranks that do not keep step: everyone ends within the timeout, with a sentence.
#include "tests/support/toy_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reknit {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;

/// Within which a rank that keeps step is always there.
const std::chrono::milliseconds kSoon = std::chrono::milliseconds(patience()) / 40;
const ToyModel kModel{{{{{16, 4}}}, {{{33}}}}};
const std::vector<RunPlace> kPlaces = {{.world = 2, .zero_stage = 0},
                                       {.world = 2, .zero_stage = 1},
                                       {.world = 2, .zero_stage = 2},
                                       {.world = 2, .zero_stage = 3},
                                       {.world = 2, .zero_stage = 3, .shard_size = 1}};

/// What ends a run of `body` on two ranks.
std::string ended_by(const RunPlace& place, const std::function<void(ToyRank&, int rank)>& body,
                     std::chrono::milliseconds timeout) {
  const auto start = std::chrono::steady_clock::now();
  std::string text = "nothing";
  try {
    on_ranks(
        place.world,
        [&](std::shared_ptr<Communicator> comm) {
          const int mine = comm->rank();
          ToyRank rank(kModel, place, std::move(comm));
          body(rank, mine);
        },
        timeout);
  } catch (const std::exception& error) {
    text = error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, patience());
  return text;
}

// Public report: the rank with more batches waits for ever.
TEST(Uneven, ARankWithMoreBatchesEndsWithTheMissingRankAndBothCounts) {
  for (const RunPlace& place : kPlaces) {
    const auto three_and_four = [](ToyRank& rank, int mine) { rank.train(mine == 0 ? 3 : 4); };
    EXPECT_THAT(ended_by(place, three_and_four, kSoon),
                AllOf(HasSubstr("timed out after"), HasSubstr("ranks missing: 0 of 2"),
                      HasSubstr("rank 0 has joined")))
        << place;
  }
}

TEST(Uneven, ARankThatReadsMoreBatchesWithoutTrainingEndsTheSame) {
  const auto body = [](ToyRank& rank, int mine) {
    for (int batch = 0; batch < 3 + mine; ++batch) {
      for (GroupId g = 0; g < rank.store().num_groups(); ++g) {
        rank.store().full(g, Phase::kForward)[0].read();
      }
      rank.store().finish_pass();
    }
  };
  EXPECT_THAT(ended_by({.world = 2, .zero_stage = 3}, body, kSoon),
              HasSubstr("ranks missing: 0 of 2"));
  // Nothing is gathered: nobody waits.
  EXPECT_EQ(ended_by({.world = 2, .zero_stage = 2}, body, kSoon), "nothing");
}

TEST(Uneven, AnExceptionOfOneRankEndsAllAtOnceWithItsOwnWords) {
  for (const RunPlace& place : kPlaces) {
    const auto body = [](ToyRank& rank, int mine) {
      rank.train(1);
      if (mine == 1) {
        throw InputError("line 7 of data.jsonl is damaged");
      }
      rank.train(2);
    };
    EXPECT_EQ(ended_by(place, body, patience()), "line 7 of data.jsonl is damaged") << place;
  }
}

}  // namespace
}  // namespace reknit
