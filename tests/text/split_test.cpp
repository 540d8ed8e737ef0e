// GPT-2's split without a regular expression gives what the pattern gives.
#include "reknit/text/split.h"

#include <gtest/gtest.h>

#include "reknit/base/error.h"
#include "reknit/base/random.h"
#include "reknit/text/gpt2_split.h"
#include "reknit/text/word_cache.h"

namespace reknit {
namespace {

// Pieces of texts, chosen to meet at every kind of border.
const std::vector<std::string> kParts = {
    "a",  "Z",      "the",    "s",      "t",      "re",         "ve",     "m",
    "ll", "d",      "'",      "'s",     "'re",    "''",         "0",      "42",
    " ",  "  ",     "\n",     "\t",     "\r",     "\v",         ".",      ",",
    "-",  "\x1c",   "\x01",   "\u00e9", "\u00a0", "\u2019",     "\u4e2d", "\u00bd",
    "\f", "\u2003", "\u0301", "_",      "\u0085", "\U0001F600", "\x7f",   "@#$"};

TEST(Gpt2Split, EqualsThePatternOnRandomTexts) {
  const Splitter fast({{kGpt2Pattern, false, false, false}});
  const Splitter slow({{str("(?:", kGpt2Pattern, ")"), false, false, false}});
  const Philox random{20};
  for (uint64_t text_number = 0; text_number < 20'000; ++text_number) {
    std::string text;
    const uint64_t parts = 1 + text_number % 24;
    // A third of the texts stay within ASCII, where no regular expression helps out.
    const bool ascii = text_number % 3 == 0;
    for (uint64_t i = 0; i < parts; ++i) {
      uint32_t words[4];
      random.block(text_number, i, words);
      const std::string& part = kParts[words[0] % kParts.size()];
      text += ascii && static_cast<uint8_t>(part[0]) >= 0x80 ? "x" : part;
    }
    ASSERT_EQ(fast.split(text), slow.split(text)) << text;
  }
}

TEST(Gpt2Split, AsciiIsDecidedWithoutThePattern) {
  const std::string text = "It's  a test,\n\n\tof 42 things' ends  ";
  std::string cut;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = gpt2_piece_end(text, begin);
    ASSERT_NE(end, std::string::npos);
    cut += str("|", text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(cut, "|It|'s| | a| test|,|\n\n|\t|of| 42| things|'| ends|  ");
  EXPECT_EQ(gpt2_piece_end("caf\u00e9", 0), std::string::npos);
  EXPECT_EQ(gpt2_piece_end("a \u00e9", 1), std::string::npos);
  EXPECT_EQ(gpt2_piece_end("\u00e9", 0), std::string::npos);
}

TEST(WordCache, KeepsWhatWasAddedAndForgetsWhenItIsFull) {
  WordCache cache;
  std::vector<int64_t> ids;
  const auto word = [](int64_t i) { return str("word", i); };
  for (int64_t i = 0; i < 131'072; ++i) {
    ids.clear();
    ASSERT_FALSE(cache.find(word(i), ids));
    cache.add(word(i), std::vector<int64_t>{i, i + 1});
  }
  for (int64_t i = 0; i < 131'072; ++i) {
    ids.clear();
    ASSERT_TRUE(cache.find(word(i), ids));
    ASSERT_EQ(ids, (std::vector<int64_t>{i, i + 1}));
  }
  cache.add("one more", {});
  ids.clear();
  EXPECT_FALSE(cache.find(word(0), ids));
  EXPECT_TRUE(cache.find("one more", ids));
  cache.add(std::string(WordCache::kLongestWord + 1, 'x'), std::vector<int64_t>{1});
  EXPECT_FALSE(cache.find(std::string(WordCache::kLongestWord + 1, 'x'), ids));
  EXPECT_TRUE(ids.empty());
}

}  // namespace
}  // namespace reknit
