// Split patterns in PCRE2's words, and the pieces they cut.
#include "reknit/text/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reknit/base/error.h"
#include "reknit/text/split.h"
#include "reknit/text/utf8.h"

namespace reknit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string_view> cut(const SplitSpec& spec, std::string_view text) {
  return Splitter({spec}).split(text);
}

TEST(Pattern, FlattensAClassInAClass) {
  EXPECT_EQ(to_pcre2("[^(a|[.,])]+?"), R"([^\x{28}a\x{7c}\x{2e}\x{2c}\x{29}]+?)");
}

TEST(Pattern, RefusesWhatOnigurumaAndPcre2MayReadDifferently) {
  const std::pair<const char*, const char*> cases[] = {
      {"\\w+", "'\\w'"},       {"\\b", "'\\b'"},        {"\\p{Han}", "{Han}"},
      {"^a", "'^'"},           {"a$", "'$'"},           {"(?<name>a)", "'(?<'"},
      {"(*F)", "'(*F'"},       {"[a&&b]", "'&&'"},      {"[[:alpha:]]", "[:"},
      {"[a[^b]]", "negated"},  {"a{,3}", "'{'"},        {"a**", "quantifier"},
      {"a{2}+", "quantifier"}, {"[]a]", "empty class"}, {"[z-a]", "range"},
      {"[a", "unfinished"},    {"\\", "unfinished"},    {"[\\S]", "negated"},
      {"\\1", "'\\1'"},        {"(?m:a)", "'(?m'"}};
  for (const auto& [pattern, what] : cases) {
    try {
      to_pcre2(pattern);
      ADD_FAILURE() << pattern << " is accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(what)) << pattern;
    }
  }
}

TEST(Pattern, SpacesAreUnicodesWhiteSpaceInEveryPlace) {
  for (char32_t c = 0; c < 0x11000; ++c) {
    if (c >= 0xD800 && c < 0xE000) {
      continue;
    }
    std::string text;
    append_utf8(text, c);
    static const Splitter outside({{"\\s", false, true, true}});
    static const Splitter inside({{"[x\\s]", false, true, true}});
    EXPECT_EQ(!outside.split(text).empty(), is_white_space(c)) << static_cast<uint32_t>(c);
    EXPECT_EQ(!inside.split(text).empty(), is_white_space(c) || c == 'x');
  }
}

TEST(Split, IsolatesOrRemovesMatchesOrWhatLiesBetween) {
  EXPECT_THAT(cut({"b+", false, false, false}, "abbc"), ElementsAre("a", "bb", "c"));
  EXPECT_THAT(cut({"b+", false, true, false}, "abbc"), ElementsAre("a", "c"));
  EXPECT_THAT(cut({"b+", false, true, true}, "abbc"), ElementsAre("bb"));
  EXPECT_THAT(cut({"b*", false, false, false}, "abbc"), ElementsAre("a", "bb", "c"));
  EXPECT_THAT(cut({".*", true, false, false}, "ab.*c"), ElementsAre("ab", ".*", "c"));
  EXPECT_THAT(cut({"x", false, false, false}, ""), ElementsAre());
}

TEST(Split, APatternThatBacktracksForEverEndsInAnInputError) {
  EXPECT_THROW(cut({"(a+)+[bc]", false, false, false}, std::string(64, 'a')), InputError);
}

}  // namespace
}  // namespace reknit
