// Splits and blends: Megatron's rules, in numbers.
#include "reknit/data/blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/token_support.h"

namespace reknit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int64_t> sizes(std::string_view split, int64_t sequences) {
  std::vector<int64_t> out;
  for (const SequenceRange& range : split_ranges(split, sequences)) {
    out.push_back(range.size());
  }
  return out;
}

std::shared_ptr<const GptDataset> small(int32_t length, int64_t sequence_length = 4) {
  return std::make_shared<const GptDataset>(numbered_file({length}), SequenceRange{0, 1},
                                            GptDatasetSpec{sequence_length});
}

std::vector<int64_t> sources(const BlendedDataset& blend, int64_t count) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(blend.choice(i).source);
  }
  return out;
}

TEST(Split, SharesAreRoundedAndTheExcessComesOffEveryBoundary) {
  EXPECT_THAT(sizes("969,30,1", 10), ElementsAre(10, 0, 0));
  EXPECT_THAT(sizes("969, 30, 1", 1000), ElementsAre(969, 30, 1));
  EXPECT_THAT(sizes("2,4,4", 5), ElementsAre(1, 2, 2));
  EXPECT_THAT(sizes("1,1,1", 2), ElementsAre(0, 1, 1));
  EXPECT_THAT(sizes("90/10", 30), ElementsAre(27, 3, 0));
  EXPECT_THAT(sizes("1", 7), ElementsAre(7, 0, 0));
  EXPECT_THAT(sizes("0,0,5", 7), ElementsAre(0, 0, 7));
  EXPECT_THAT(sizes("0,1,1", 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(sizes("0.5,0.25,0.25", 3'000'000'001),
              ElementsAre(1'500'000'001, 750'000'000, 750'000'000));
}

TEST(Split, PartsAreInOrderAndTogetherEverything) {
  for (int64_t sequences = 1; sequences < 200; ++sequences) {
    for (const char* weights : {"969,30,1", "1,1,1", "0,1,1", "98,1,1", "1,0,1", "3,2,0"}) {
      const auto ranges = split_ranges(weights, sequences);
      ASSERT_EQ(ranges[0].begin, 0);
      ASSERT_EQ(ranges[2].end, sequences) << weights << " of " << sequences;
      for (size_t i = 0; i < 3; ++i) {
        ASSERT_GE(ranges[i].size(), 0);
        ASSERT_TRUE(i == 0 || ranges[i].begin == ranges[i - 1].end);
      }
    }
  }
}

TEST(Split, WhatIsNoSplitIsRefused) {
  const auto refused = [](const char* split) {
    return refusal<UsageError>([&] { split_ranges(split, 10); });
  };
  EXPECT_THAT(refused("1,2,3,4"), HasSubstr("more than three weights"));
  EXPECT_THAT(refused("1,x"), HasSubstr("'x', which is no weight"));
  EXPECT_THAT(refused("1,-1"), HasSubstr("'-1', which is no weight"));
  EXPECT_THAT(refused("1,nan"), HasSubstr("'nan', which is no weight"));
  EXPECT_THAT(refused(""), HasSubstr("'', which is no weight"));
  EXPECT_THAT(refused("0,0"), HasSubstr("add up to 0"));
}

TEST(Blend, WordsArePairsOfWeightAndPrefix) {
  const std::vector<BlendEntry> blend = parse_blend({"3", "a", "1", "b"});
  ASSERT_EQ(blend.size(), 2u);
  EXPECT_EQ(blend[0].weight, 0.75);
  EXPECT_EQ(blend[0].prefix, "a");
  EXPECT_EQ(blend[1].weight, 0.25);
  EXPECT_EQ(parse_blend({"a"})[0].prefix, "a");
  const auto refused = [](const std::vector<std::string>& words) {
    return refusal<UsageError>([&] { parse_blend(words); });
  };
  EXPECT_THAT(refused({"1", "a", "b"}), HasSubstr("a blend of 3 words"));
  EXPECT_THAT(refused({"a", "1"}), HasSubstr("the weight 'a' of 1"));
  EXPECT_THAT(refused({"0", "a", "1", "b"}), HasSubstr("the weight '0' of a"));
  EXPECT_THAT(refused({}), HasSubstr("a blend of 0 words"));
}

TEST(Blend, TheDataSetFurthestBehindItsShareIsNext) {
  const BlendedDataset blend({{0.7, small(9)}, {0.3, small(9)}});
  EXPECT_THAT(sources(blend, 10), ElementsAre(0, 1, 0, 0, 1, 0, 0, 1, 0, 0));
  EXPECT_EQ(blend.choice(9), (BlendedDataset::Choice{0, 6}));
  EXPECT_EQ(blend.choice(7), (BlendedDataset::Choice{1, 2}));
}

TEST(Blend, AnyOrderOfAccessGivesTheSameChoices) {
  const std::vector<BlendedDataset::Source> both = {{7, small(9)}, {2, small(9)}, {1, small(9)}};
  const BlendedDataset forward(both);
  const BlendedDataset backward(both);
  const std::vector<int64_t> asked = {0, 65535, 65536, 200'000, 131'071, 70'000};
  std::vector<BlendedDataset::Choice> first;
  for (const int64_t sample : asked) {
    first.push_back(forward.choice(sample));
  }
  for (size_t i = asked.size(); i-- > 0;) {
    EXPECT_EQ(backward.choice(asked[i]), first[i]);
  }
  std::vector<int64_t> taken(3);
  for (int64_t sample = 0; sample < 140'000; ++sample) {
    const BlendedDataset::Choice choice = forward.choice(sample);
    ASSERT_EQ(choice.sample, taken[choice.source]++);
  }
  EXPECT_NEAR(taken[0], 98'000, 3);
  EXPECT_NEAR(taken[1], 28'000, 3);
}

TEST(Blend, MoreThan255DataSetsAreAllVisited) {
  std::vector<BlendedDataset::Source> many;
  for (int32_t i = 0; i < 300; ++i) {
    many.push_back({1, small(1 + i)});
  }
  const BlendedDataset blend(many);
  std::vector<int64_t> count(300);
  for (int64_t i = 0; i < 3000; ++i) {
    ++count[blend.choice(i).source];
  }
  EXPECT_THAT(count, testing::Each(testing::AllOf(testing::Ge(9), testing::Le(11))));
}

TEST(Blend, PartsAreOpenedFromFilesAndEmptyOnesAreLeftOut) {
  const TempFolder folder;
  for (const auto& [name, count] : {std::pair{"a", 10}, {"b", 1000}}) {
    TokenFileWriter writer(folder / name, TokenType::kU16);
    for (int64_t i = 0; i < count; ++i) {
      writer.add_sequence(std::vector<int64_t>{count, i, i, i});
      writer.end_document();
    }
    writer.commit();
  }
  const TokenBlend files(parse_blend({"1", folder / "a", "1", folder / "b"}));
  const GptDatasetSpec spec{3};
  const auto train = files.part("969,30,1", Part::kTrain, spec);
  const auto valid = files.part("969,30,1", Part::kValid, spec);
  ASSERT_EQ(train->sources().size(), 2u);
  EXPECT_EQ(train->sources()[1].data->range(), (SequenceRange{0, 969}));
  ASSERT_EQ(valid->sources().size(), 1u);
  EXPECT_EQ(valid->sources()[0].data->range(), (SequenceRange{969, 999}));
  EXPECT_EQ(files.part("1", Part::kTest, spec), nullptr);
  std::vector<int64_t> tokens(4);
  valid->read(0, tokens);
  const BlendedDataset::Choice choice = train->choice(1);
  std::vector<int64_t> same(4);
  train->read(1, tokens);
  train->sources()[choice.source].data->read(choice.sample, same);
  EXPECT_EQ(tokens, same);
}

}  // namespace
}  // namespace reknit
