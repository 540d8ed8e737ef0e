// Pictures of curves.
#include "apps/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace reknit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(Ticks, AreRoundAndHoldTheWholeRange) {
  EXPECT_THAT(ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks(1, 11, 5), ElementsAre(0, 2, 4, 6, 8, 10, 12));
  for (const auto& [low, high] :
       {std::pair{-3.0, 1e-3}, {1e9, 1.5e9}, {8.99, 9.03}, {4, 4}, {0, 0}}) {
    const std::vector<double> marks = ticks(low, high, 6);
    ASSERT_GE(marks.size(), 2u);
    EXPECT_LE(marks.front(), low + 1e-9 * std::abs(low));
    EXPECT_GE(marks.back(), high - 1e-9 * std::abs(high));
    EXPECT_LE(marks.size(), 9u);
  }
}

TEST(Ticks, OfValuesThatDifferInTheirLastDigitsAreThoseOfAFlatCurve) {
  const double next = std::nextafter(1.0, 2.0);
  for (const auto& [low, high] : {std::pair{1.0, next},
                                  {-next, -1.0},
                                  {0.0, 5e-324},
                                  {-1e-310, 1e-310},
                                  {1e9, 1e9 + 1e-6},
                                  {-1e300, 1e300}}) {
    const std::vector<double> marks = ticks(low, high, 6);
    ASSERT_GE(marks.size(), 2u);
    EXPECT_LE(marks.size(), 9u);
    EXPECT_LE(marks.front(), low);
    EXPECT_GE(marks.back(), high);
  }
}

TEST(Svg, LeavesOutWhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const std::string picture = svg({"loss", "step", {{"", {{1, 2}, {2, nan}, {3, inf}, {4, 3}}}}});
  EXPECT_THAT(picture, Not(HasSubstr("nan")));
  EXPECT_THAT(picture, Not(HasSubstr("inf")));
  EXPECT_EQ(picture, svg({"loss", "step", {{"", {{1, 2}, {4, 3}}}}}));
}

TEST(Svg, OfALongCurveKeepsASinglePeak) {
  Curve curve{"", {}};
  for (int i = 0; i < 100'000; ++i) {
    curve.points.emplace_back(i, i == 54'321 ? 1.0 : 0.0);
  }
  const std::string picture = svg({"", "", {curve}});
  EXPECT_LT(picture.size(), 50'000u);
  EXPECT_THAT(picture, HasSubstr(" 46.0L"));  // the top of the frame
}

TEST(Svg, WritesOutCharactersThatItReadsAsItsOwn) {
  EXPECT_THAT(svg({"a < b & \"c\"", "", {}}), HasSubstr("a &lt; b &amp; &quot;c&quot;"));
}

}  // namespace
}  // namespace reknit
