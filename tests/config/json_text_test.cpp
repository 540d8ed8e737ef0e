// JSON with comments: what is taken, and where errors point.
#include "reknit/config/json_text.h"

#include "reknit/base/error.h"

#include <gmock/gmock.h>

#include <fstream>

namespace reknit {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string error_of(const std::string& text) {
  try {
    parse_json_text(text, "ds.json");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(JsonText, CommentsAndTrailingCommasAreAllowed) {
  const json value = parse_json_text(R"(// head
    {"a": [1, 2, /* in */ ], "b": {"c": "x // no comment, }",}, // tail
    })",
                                     "ds.json");
  EXPECT_EQ(value, json::parse(R"({"a": [1, 2], "b": {"c": "x // no comment, }"}})"));
}

TEST(JsonText, NumbersKeepTheirKind) {
  const json value = parse_json_text(R"({"a": 5e8, "b": 7, "c": -1, "d": 0.5})", "x");
  EXPECT_TRUE(value["a"].is_number_float());
  EXPECT_TRUE(value["b"].is_number_integer());
  EXPECT_EQ(value["c"], -1);
  EXPECT_EQ(value["d"], 0.5);
}

TEST(JsonText, SyntaxErrorsNameFileLineAndColumn) {
  EXPECT_THAT(error_of("{\n  \"a\": 1\n  \"b\": 2\n}"), HasSubstr("ds.json, line 3, column "));
  EXPECT_THAT(error_of("{\"a\": }"), HasSubstr("line 1, column 7"));
  EXPECT_THAT(error_of("{\"a\": tru}"), HasSubstr("ds.json, line 1"));
  EXPECT_THAT(error_of("{\n /* open"), HasSubstr("line 2, column 2: a comment is not closed"));
  EXPECT_THAT(error_of(""), HasSubstr("the text is empty"));
  EXPECT_THAT(error_of("{\"a\": \"open"), HasSubstr("ds.json, line 1"));
  EXPECT_THAT(error_of("{} {}"), HasSubstr("ds.json, line 1"));
}

TEST(JsonText, CommasThatFollowNothingAreErrors) {
  EXPECT_THAT(error_of("[,]"), HasSubstr("line 1, column 2"));
  EXPECT_THAT(error_of("{,}"), HasSubstr("line 1, column 2"));
  EXPECT_THAT(error_of("[1,,]"), HasSubstr("line 1, column 4"));
}

TEST(JsonText, RepeatedKeysAreRefusedWithTheirPath) {
  EXPECT_THAT(error_of(R"({"fp16":{"enabled":true,"enabled":false}})"),
              HasSubstr("fp16.enabled is given twice"));
  EXPECT_THAT(error_of(R"({"a":[{"b":1},{"b":1,"b":2}]})"), HasSubstr("a[1].b is given twice"));
}

TEST(JsonText, DeepNestingIsRefused) {
  EXPECT_THAT(error_of(std::string(5000, '[')), HasSubstr("nested more than"));
}

TEST(JsonText, AMissingFileIsAnInputError) {
  EXPECT_THROW(read_json_file("/nonexistent/ds.json"), InputError);
  EXPECT_THROW(read_json_file("/"), InputError);
}

}  // namespace
}  // namespace reknit
