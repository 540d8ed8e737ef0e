// Layout arithmetic, exhaustively over small worlds and odd sizes.
#include "reknit/store/layout.h"

#include <gtest/gtest.h>

namespace reknit {
namespace {

GroupSpec group_of(const std::vector<std::vector<int64_t>>& shapes) {
  GroupSpec spec{"group", {}};
  for (size_t i = 0; i < shapes.size(); ++i) {
    spec.params.push_back({.name = str("p", i), .shape = shapes[i]});
  }
  return spec;
}

TEST(Layout, ShardsOfAnyWorldSizeCoverEveryElementOnce) {
  const GroupSpec spec = group_of({{8}, {0}, {24}, {3}, {5, 7}, {1}, {0, 4}, {129}});
  for (int world = 1; world <= 17; ++world) {
    const GroupLayout layout = GroupLayout::of(spec, {at::kFloat, world, 0});
    ASSERT_EQ(layout.segments.size(), 1u);
    const SegmentLayout& segment = layout.segments[0];
    EXPECT_EQ(segment.padded % world, 0);
    std::vector<int> covered(segment.padded, 0);
    for (int shard = 0; shard < world; ++shard) {
      const Extent run = segment.shard(shard);
      EXPECT_EQ(run.size(), segment.shard_numel());
      for (int64_t i = run.begin; i < run.end; ++i) {
        ++covered[i];
      }
    }
    for (const int count : covered) {
      EXPECT_EQ(count, 1);
    }
  }
}

TEST(Layout, ParametersDoNotOverlapAndStartAligned) {
  const GroupSpec spec = group_of({{8}, {0}, {24}, {3}, {5, 7}, {1}});
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kByte}) {
    const GroupLayout layout = GroupLayout::of(spec, {dtype, 3, 0});
    int64_t end = 0;
    for (const ParamPlace& place : layout.places) {
      EXPECT_GE(place.offset, end);
      EXPECT_EQ(place.offset * static_cast<int64_t>(c10::elementSize(dtype)) % kAlignBytes, 0);
      end = place.offset + place.numel;
    }
    EXPECT_LE(end, layout.segments[0].padded);
  }
}

TEST(Layout, ASegmentHoldsOneDtypeAndOneKind) {
  GroupSpec spec = group_of({{6}, {10}, {2}, {16}, {4}});
  spec.params[1].dtype = at::kBFloat16;
  spec.params[3].dtype = at::kByte;
  spec.params[3].trainable = false;
  spec.params[4].trainable = false;
  const GroupLayout layout = GroupLayout::of(spec, {at::kFloat, 2, 3});
  // fp32 trainable {0}, bf16 {1}, fp32 persistent {2}, uint8 frozen {3}, fp32 frozen {4}
  ASSERT_EQ(layout.segments.size(), 5u);
  EXPECT_TRUE(layout.segments[layout.places[2].segment].persistent);
  EXPECT_FALSE(layout.segments[layout.places[0].segment].persistent);
  EXPECT_FALSE(layout.segments[layout.places[4].segment].trainable);
  EXPECT_EQ(layout.segments[layout.places[3].segment].dtype, at::kByte);
}

TEST(Layout, SixtyFourBitSizesSurvive) {
  const int64_t huge = (int64_t{1} << 31) + 5;
  const GroupLayout layout = GroupLayout::of(group_of({{huge}, {7}}), {at::kBFloat16, 3, 0});
  EXPECT_EQ(layout.places[0].numel, huge);
  EXPECT_GT(layout.places[1].offset, huge);
  EXPECT_EQ(layout.segments[0].shard(2).end, layout.segments[0].padded);
}

TEST(Layout, ShardsOfParametersBeyond32BitsMeetAtTheirEnds) {
  const int64_t table = int64_t{3} << 38;
  const GroupSpec spec =
      group_of({{(int64_t{1} << 31) - 1}, {int64_t{1} << 20, int64_t{3} << 18}, {7}});
  for (const int shards : {1, 2, 3, 8, 192, 1024}) {
    const GroupLayout layout = GroupLayout::of(spec, {at::kBFloat16, shards, 8});
    ASSERT_EQ(layout.segments.size(), 2u);
    EXPECT_EQ(layout.persistent_numel, 7);
    EXPECT_EQ(layout.places[1].numel, table);
    EXPECT_EQ(layout.places[1].offset, int64_t{1} << 31);
    const SegmentLayout& segment = layout.segments[0];
    EXPECT_GE(segment.padded, table + (int64_t{1} << 31));
    EXPECT_LT(segment.padded, table + (int64_t{1} << 31) + 64 * shards);
    EXPECT_EQ(segment.bytes(), 2 * segment.padded);
    int64_t end = 0;
    int64_t inside = 0;
    for (int shard = 0; shard < shards; ++shard) {
      const Extent extent = segment.shard(shard);
      EXPECT_EQ(extent.begin, end);
      EXPECT_EQ(extent.begin * 2 % kAlignBytes, 0);
      end = extent.end;
      inside +=
          intersect(extent, {layout.places[1].offset, layout.places[1].offset + table}).size();
    }
    EXPECT_EQ(end, segment.padded);
    EXPECT_EQ(inside, table);
  }
}

TEST(Layout, ElementsThatDoNotFit64BitsAreRefused) {
  const int64_t half = int64_t{1} << 32;
  EXPECT_THROW(GroupLayout::of(group_of({{half, half}}), {at::kFloat, 2, 0}), UsageError);
  const GroupSpec empty = group_of({{0, half, half}});
  EXPECT_EQ(GroupLayout::of(empty, {at::kFloat, 2, 0}).segments[0].padded, 0);
}

TEST(Layout, AGroupWithoutParametersHasNoSegments) {
  EXPECT_TRUE(GroupLayout::of(group_of({}), {at::kFloat, 4, 0}).segments.empty());
}

TEST(Layout, NegativeDimensionsAreRefusedByName) {
  try {
    GroupLayout::of(group_of({{4}, {-1, 3}}), {at::kFloat, 2, 0});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("p1"), std::string::npos);
  }
}

}  // namespace
}  // namespace reknit
