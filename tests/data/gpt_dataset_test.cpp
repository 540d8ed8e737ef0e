// Samples: their rows, their order, and that nothing but seed and number decides them.
#include "reknit/data/gpt_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "tests/data/token_support.h"

namespace reknit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Row = GptDataset::Row;

GptDataset dataset(const std::vector<int32_t>& lengths, int64_t sequence_length, bool shuffle,
                   uint64_t seed = 1234) {
  const SequenceRange all{0, std::ssize(lengths)};
  return GptDataset(numbered_file(lengths), all, {sequence_length, seed, shuffle});
}

std::vector<int64_t> sample(const GptDataset& data, int64_t number) {
  std::vector<int64_t> tokens(data.sequence_length() + 1);
  data.read(number, tokens);
  return tokens;
}

TEST(RandomOrder, IsAPermutationOfEverySize) {
  for (int64_t size = 1; size <= 300; ++size) {
    const RandomOrder order(7, size);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < size; ++i) {
      seen.insert(order(i));
    }
    ASSERT_EQ(std::ssize(seen), size);
    ASSERT_EQ(*seen.begin(), 0);
    ASSERT_EQ(*seen.rbegin(), size - 1);
  }
}

TEST(RandomOrder, PutsEveryEntryAnywhereEquallyOften) {
  constexpr int64_t kKeys = 6000;
  for (const int64_t size : {2, 3, 5, 8, 12}) {
    std::vector<std::vector<int64_t>> count(size, std::vector<int64_t>(size));
    std::map<std::pair<int64_t, int64_t>, int64_t> pairs;
    for (int64_t key = 0; key < kKeys; ++key) {
      const RandomOrder order(key, size);
      for (int64_t i = 0; i < size; ++i) {
        ++count[i][order(i)];
      }
      ++pairs[{order(0), order(1)}];
    }
    const auto near = [&](int64_t found, double cells) {
      const double expected = kKeys / cells;
      EXPECT_NEAR(found, expected, 6 * std::sqrt(expected)) << "size " << size;
    };
    for (const auto& row : count) {
      std::for_each(row.begin(), row.end(), [&](int64_t c) { near(c, size); });
    }
    for (const auto& [pair, found] : pairs) {
      near(found, size * (size - 1));
    }
  }
}

TEST(GptDataset, RowsAreThoseOfTheHandMadeCases) {
  const GptDataset plain = dataset({5, 3, 4}, 4, false);
  EXPECT_EQ(plain.row(0), (Row{0, 0}));
  EXPECT_EQ(plain.row(1), (Row{0, 4}));
  EXPECT_EQ(plain.row(2), (Row{2, 0}));
  EXPECT_EQ(plain.samples_in(1), 2);
  EXPECT_THAT(sample(plain, 0), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(sample(plain, 1), ElementsAre(4, 100, 101, 102, 200));

  const GptDataset with_empty = dataset({5, 0, 3, 4}, 4, false);
  EXPECT_EQ(with_empty.row(0), (Row{0, 0}));
  EXPECT_EQ(with_empty.row(1), (Row{0, 4}));
  EXPECT_EQ(with_empty.row(2), (Row{3, 0}));
  EXPECT_THAT(sample(with_empty, 1), ElementsAre(4, 200, 201, 202, 300));

  const GptDataset twice = dataset({3, 2}, 4, false);
  EXPECT_EQ(twice.row(0), (Row{0, 0}));
  EXPECT_EQ(twice.row(1), (Row{1, 1}));
  EXPECT_EQ(twice.row(2), (Row{3, 0}));
  EXPECT_EQ(twice.samples_in(1), 1);
  EXPECT_EQ(twice.samples_in(2), 2);
  EXPECT_EQ(twice.epochs_for(1), 1);
  EXPECT_EQ(twice.epochs_for(2), 2);
  EXPECT_EQ(twice.epochs_for(3), 3);
  EXPECT_THAT(sample(twice, 1), ElementsAre(101, 0, 1, 2, 100));
}

TEST(GptDataset, OneTokenDocumentsAndSamplesOfManyEpochsAreRead) {
  const GptDataset data = dataset({1, 0, 1}, 7, false);
  EXPECT_THAT(sample(data, 0), ElementsAre(0, 200, 0, 200, 0, 200, 0, 200));
  EXPECT_THAT(sample(data, 1), ElementsAre(200, 0, 200, 0, 200, 0, 200, 0));
  EXPECT_EQ(data.samples_in(1), 0);
  EXPECT_EQ(data.epochs_for(1), 4);
}

TEST(GptDataset, ARangeWithoutTokensIsRefused) {
  const auto file = numbered_file({5, 0, 0, 4});
  EXPECT_THAT(refusal([&] {
                GptDataset(file, {1, 3}, {4});
              }),
              HasSubstr("t: sequences 1 to 3 hold no tokens"));
}

// The stream is built here from sequence_at alone, token by token.
TEST(GptDataset, ASampleIsItsPlaceOfTheStreamAndOverlapsTheNextByOneToken) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 150; ++i) {
    lengths.push_back(i * i % 13);
  }
  const auto file = numbered_file(lengths);
  const GptDataset data(file, {10, 140}, {16, 5, true});
  std::vector<int64_t> stream;
  for (int64_t position = 0; position < 4 * 130; ++position) {
    const int64_t sequence = data.sequence_at(position);
    ASSERT_GE(sequence, 10);
    ASSERT_LT(sequence, 140);
    std::vector<int64_t> tokens(file->length(sequence));
    file->read(sequence, 0, tokens);
    stream.insert(stream.end(), tokens.begin(), tokens.end());
  }
  ASSERT_EQ(std::ssize(stream), 4 * data.tokens_per_epoch());
  for (int64_t i = 0; i < data.samples_in(3); ++i) {
    const int64_t begin = data.place_of(i) * 16;
    const std::vector<int64_t> tokens = sample(data, i);
    ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), stream.begin() + begin)) << i;
    ASSERT_LE(begin / data.tokens_per_epoch(), 3);
  }
}

TEST(GptDataset, EveryEpochVisitsEverySequenceAndEveryPlaceOnceInAnOrderOfItsOwn) {
  const std::vector<int32_t> lengths(200, 9);
  const GptDataset data = dataset(lengths, 8, true);
  const GptDataset other = dataset(lengths, 8, true, 1235);
  std::vector<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> sequences;
    orders.emplace_back();
    for (int64_t i = 0; i < 200; ++i) {
      orders.back().push_back(data.sequence_at(epoch * 200 + i));
      sequences.insert(orders.back().back());
    }
    EXPECT_EQ(sequences.size(), 200u);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  std::set<int64_t> places;
  int64_t same = 0;
  for (int64_t i = 0; i < 225; ++i) {  // an epoch of 1800 tokens
    places.insert(data.place_of(i));
    same += data.place_of(i) == other.place_of(i);
  }
  EXPECT_EQ(places.size(), 225u);
  EXPECT_EQ(*places.rbegin(), 224);
  EXPECT_LT(same, 15);
  EXPECT_GE(data.place_of(225), 225);
}

TEST(GptDataset, TheOrderDoesNotDependOnRanksThreadsOrWhatWasReadBefore) {
  const std::vector<int32_t> lengths(50, 11);
  const GptDataset one = dataset(lengths, 8, true);
  std::vector<std::vector<int64_t>> expected;
  for (int64_t step = 0; step < 30; ++step) {
    for (int64_t index = 0; index < 12; ++index) {
      expected.push_back(sample(one, sample_of(step, index, 12)));
    }
  }
  for (const int64_t ranks : {2, 3, 4}) {
    const GptDataset data = dataset(lengths, 8, true);
    std::vector<std::vector<int64_t>> found(expected.size());
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        for (int64_t step = 29; step >= 0; --step) {
          for (int64_t index = rank * 12 / ranks; index < (rank + 1) * 12 / ranks; ++index) {
            found[step * 12 + index] = sample(data, sample_of(step, index, 12));
          }
        }
      });
    }
    std::for_each(threads.begin(), threads.end(), [](std::thread& thread) { thread.join(); });
    EXPECT_EQ(found, expected) << ranks << " ranks";
  }
}

TEST(GptDataset, ATokenOutsideTheVocabularyIsRefusedWithItsPlace) {
  GptDatasetSpec spec{4, 1, false, 200};
  const GptDataset data(numbered_file({5, 3, 4}), {0, 3}, spec);
  sample(data, 0);
  EXPECT_THAT(refusal([&] { sample(data, 1); }),
              HasSubstr("token 0 of sequence 2 is 200, outside the model's vocabulary of 200"));
}

}  // namespace
}  // namespace reknit
