// Text to token files: what is written, in which order, and which rows are refused.
#include "reknit/data/build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/token_support.h"
#include "tests/support/no_more_threads.h"

namespace reknit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Tokens a, b, c, space, ab and the end token, ids 0 to 5.
Tokenizer toy_tokenizer(const TempFolder& folder, bool end_token = true) {
  spit(folder / "tokenizer.json",
       R"({"added_tokens": [{"id": 5, "content": "<end>", "special": true}],
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
           "decoder": {"type": "ByteLevel"},
           "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "\u0120": 3, "ab": 4},
                     "merges": ["a b"]}})");
  spit(folder / "tokenizer_config.json", end_token ? R"({"eos_token": "<end>"})" : "{}");
  return Tokenizer::load(folder.path());
}

struct Built {
  BuildCounts counts;
  std::vector<std::vector<int64_t>> documents;
  std::string bin;
  std::string idx;
};

Built build(const TempFolder& folder, const Tokenizer& tokenizer, BuildSpec spec) {
  spec.prefix = folder / "out";
  Built built;
  int64_t read = 0;
  built.counts = build_token_file(spec, tokenizer, [&read](int64_t bytes) {
    EXPECT_GE(bytes, read);
    read = bytes;
  });
  const auto file = TokenFile::open(spec.prefix);
  EXPECT_EQ(file->documents(), file->sequences());
  for (int64_t i = 0; i < file->sequences(); ++i) {
    built.documents.emplace_back(file->length(i));
    file->read(i, 0, built.documents.back());
  }
  built.bin = slurp(spec.prefix + ".bin");
  built.idx = slurp(spec.prefix + ".idx");
  return built;
}

TEST(Build, EveryTextBecomesADocumentWithAnEndToken) {
  const TempFolder folder;
  const Tokenizer tokenizer = toy_tokenizer(folder);
  spit(folder / "a.jsonl",
       "{\"text\": \"abc ab\", \"n\": [1, {\"text\": \"c\"}]}\n\n"
       "{\"text\": \"\"}\n{\"text\": null}\n{\"meta\": {\"text\": 3}, \"text\": \"<end>\"}\n");
  spit(folder / "b.json", R"([{"text": "c"},)"
                          "\n"
                          R"({"text": "\u0061b"}])");
  const Built built = build(folder, tokenizer, {{folder / "a.jsonl", folder / "b.json"}, ""});
  EXPECT_THAT(built.documents, ElementsAre(ElementsAre(4, 2, 3, 4, 5), ElementsAre(5, 5),
                                           ElementsAre(2, 5), ElementsAre(4, 5)));
  EXPECT_EQ(built.counts.type, TokenType::kU16);
  EXPECT_EQ(built.counts.documents, 4);
  EXPECT_EQ(built.counts.left_out, 2);
  EXPECT_EQ(built.counts.tokens, 11);
  EXPECT_EQ(built.counts.text_bytes, 14);
}

TEST(Build, EndTokensAndTheKeyMayBeChosen) {
  const TempFolder folder;
  const Tokenizer tokenizer = toy_tokenizer(folder, false);
  spit(folder / "a.jsonl", "{\"body\": \"ab\", \"text\": 1}\n");
  BuildSpec spec{{folder / "a.jsonl"}, folder / "out", "body", false};
  EXPECT_THAT(build(folder, tokenizer, spec).documents, ElementsAre(ElementsAre(4)));
  spec.append_end = true;
  EXPECT_THAT(refusal<UsageError>([&] { build(folder, tokenizer, spec); }),
              HasSubstr("names no end token"));
}

TEST(Build, AnyNumberOfWorkersWritesTheSameBytes) {
  const TempFolder folder;
  const Tokenizer tokenizer = toy_tokenizer(folder);
  std::string rows;
  for (int64_t i = 0; i < 60'000; ++i) {
    rows +=
        str("{\"text\": \"", std::string(i % 17, "abc"[i % 3]), " ", i % 7 ? "ab" : "c", "\"}\n");
  }
  spit(folder / "a.jsonl", rows);
  BuildSpec spec{{folder / "a.jsonl", folder / "a.jsonl"}, ""};
  const Built one = build(folder, tokenizer, spec);
  spec.workers = 4;
  const Built four = build(folder, tokenizer, spec);
  EXPECT_EQ(one.counts.documents, 120'000);
  EXPECT_TRUE(one.bin == four.bin);
  EXPECT_TRUE(one.idx == four.idx);
}

TEST(Build, TheFirstWrongRowIsNamedAndNothingIsLeft) {
  const TempFolder folder;
  const Tokenizer tokenizer = toy_tokenizer(folder);
  const size_t before = folder.count();
  const auto refused = [&](const std::string& rows, int64_t workers = 1) {
    spit(folder / "a.jsonl", rows);
    BuildSpec spec{{folder / "a.jsonl"}, folder / "out"};
    spec.workers = workers;
    const std::string sentence =
        refusal([&] { build_token_file(spec, tokenizer, [](int64_t) {}); });
    EXPECT_EQ(folder.count(), before + 1);
    return sentence;
  };
  EXPECT_THAT(refused("{\"text\": \"a\"}\n{\"txt\": \"a\", \"n\": 1}\n"),
              HasSubstr("a.jsonl, line 2: the row has no 'text' among (n, txt)"));
  EXPECT_THAT(refused("{\"text\": 3}\n"), HasSubstr("line 1: 'text' is a number, not a text"));
  EXPECT_THAT(refused("{\"text\": [\"a\"]}\n"), HasSubstr("'text' is a list"));
  EXPECT_THAT(refused("{\"text\": {\"text\": \"a\"}}\n"), HasSubstr("'text' is an object"));
  EXPECT_THAT(refused("3\n"), HasSubstr("line 1: the row is not an object"));
  EXPECT_THAT(refused("{\"text\": \"a\"\n"), HasSubstr("line 1: is no JSON"));
  EXPECT_THAT(refused("{\"text\": \"\xC3\"}\n"), HasSubstr("line 1: is no JSON"));
  EXPECT_THAT(refused("[{\"text\": \"a\"}, 3]"), HasSubstr("a.jsonl, row 2: the row is not"));
  EXPECT_THAT(refused("[" + std::string(100'000, '[')), HasSubstr("a.jsonl: is"));
  EXPECT_THAT(refused(str("{\"x\": ", std::string(100'000, '['))), HasSubstr("line 1: is no JSON"));
  EXPECT_THAT(refused("{\"text\": \"\"}\n"), HasSubstr("no text in "));
  EXPECT_THAT(refused(""), HasSubstr("no text in "));
  std::string many;
  for (int64_t i = 1; i <= 100'000; ++i) {
    many += i % 30'000 == 0 ? "{\"text\": 1}\n" : "{\"text\": \"a\"}\n";
  }
  EXPECT_THAT(refused(many, 4), HasSubstr("line 30000:"));
}

TEST(Build, WorkersThatCannotBeStartedAreAnErrorAndNothingIsLeft) {
  const TempFolder folder;
  const Tokenizer tokenizer = toy_tokenizer(folder);
  spit(folder / "in.jsonl", R"({"text": "ab"})");
  const NoMoreThreads limit;
  try {
    build(folder, tokenizer, {.inputs = {folder / "in.jsonl"}, .workers = 3});
    FAIL() << "it was built";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("only 1 of 3 workers can be started"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "out.bin"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out.idx"));
}

}  // namespace
}  // namespace reknit
