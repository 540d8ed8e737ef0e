#include "reknit/base/trace.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

nlohmann::json events_of(const std::vector<const Trace*>& ranks, const std::string& phase) {
  nlohmann::json found = nlohmann::json::array();
  const nlohmann::json trace = nlohmann::json::parse(trace_json(ranks));
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) {
      found.push_back(event);
    }
  }
  return found;
}

TEST(Trace, IsJsonWithAProcessForEachRankAndARowForEachName) {
  Trace first(0), second(3);
  first.add(first.row("a \"quoted\" row"),
            {.label = "gather", .begin = 1, .seconds = 0.5, .bytes = 8});
  second.add(second.row("b"), {.label = "updated", .begin = 2, .number = 7});
  const auto spans = events_of({&first, &second}, "X");
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].at("pid"), 0);
  EXPECT_EQ(spans[0].at("ts"), 1e6);
  EXPECT_EQ(spans[0].at("dur"), 5e5);
  EXPECT_EQ(spans[0].at("args"), (nlohmann::json{{"bytes", 8}}));
  const auto instants = events_of({&first, &second}, "i");
  ASSERT_EQ(instants.size(), 1u);
  EXPECT_EQ(instants[0].at("pid"), 3);
  EXPECT_EQ(instants[0].at("args"), (nlohmann::json{{"number", 7}}));
  std::vector<std::string> names;
  for (const auto& event : events_of({&first, &second}, "M")) {
    if (event.at("args").contains("name")) {
      names.push_back(event.at("args").at("name"));
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"rank 0", "a \"quoted\" row", "rank 3", "b"}));
  EXPECT_TRUE(nlohmann::json::parse(trace_json({})).at("traceEvents").empty());
}

TEST(Trace, KeepsTheLastSpansAndSaysHowManyItDropped) {
  Trace trace(0, 3);
  for (int64_t i = 0; i < 8; ++i) {
    trace.add(trace.row("row"), {.label = "x", .begin = double(i), .seconds = 0.5, .number = i});
  }
  EXPECT_EQ(trace.dropped(), 5);
  std::vector<int64_t> numbers;
  for (const auto& event : events_of({&trace}, "X")) {
    numbers.push_back(event.at("args").at("number"));
  }
  EXPECT_EQ(numbers, (std::vector<int64_t>{5, 6, 7}));
}

TEST(Trace, SpansOfARowDoNotOverlap) {
  Trace trace(0);
  const int row = trace.row("row");
  trace.add(row, {.label = "x", .begin = 1, .seconds = 2});
  trace.add(row, {.label = "y", .begin = 2, .seconds = 3});
  const auto spans = events_of({&trace}, "X");
  EXPECT_EQ(spans[1].at("ts"), 3e6);
  EXPECT_EQ(spans[1].at("dur"), 2e6);
}

}  // namespace
}  // namespace reknit
