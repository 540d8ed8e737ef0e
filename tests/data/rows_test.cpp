// Row files: kinds, forms, errors that name the place, and the seeded order.
#include "reknit/data/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "reknit/base/error.h"

namespace reknit {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class RowFile {
 public:
  explicit RowFile(const std::string& content, const std::string& ending = ".jsonl")
      : path_(fs::temp_directory_path() / str("reknit_rows_", getpid(), ending)) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~RowFile() { fs::remove(path_); }
  const fs::path& path() const { return path_; }
  std::vector<Row> rows() const { return read_rows({path_}); }

  std::pair<std::string, std::string> refusal() const {
    try {
      rows();
    } catch (const InputError& error) {
      return {error.what(), error.help()};
    }
    return {"accepted", ""};
  }

 private:
  fs::path path_;
};

std::string gzip(const std::string& text) {
  const RowFile file(text, ".plain");
  const std::string packed = file.path().string() + ".gz";
  EXPECT_EQ(std::system(str("gzip -c '", file.path().string(), "' > '", packed, "'").c_str()), 0);
  std::ifstream in(packed, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  fs::remove(packed);
  return bytes;
}

TEST(Rows, EveryKindIsRead) {
  const RowFile file(
      "{\"prompt\": \"p\", \"answer\": 42, \"a\": [1, null]}\r\n"
      "\n"
      "{\"text\": \"t\"}\n"
      "{\"prompt\": \"p\", \"completion\": \"c\", \"text\": null}\n"
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"}], \"chosen\": \"c\", \"rejected\": "
      "\"\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
      "\"content\": \"a\"}]}\n"
      "{\"tokens\": [3, 0, 50271]}\n"
      "{\"prompt\": {\"tokens\": [1]}}");
  const std::vector<Row> rows = file.rows();
  ASSERT_EQ(rows.size(), 7u);
  EXPECT_EQ(rows[0].prompt->text, "p");
  EXPECT_EQ(nlohmann::json::parse(rows[0].other),
            nlohmann::json::parse(R"({"answer": 42, "a": [1, null]})"));
  EXPECT_EQ(rows[1].text->text, "t");
  EXPECT_THAT(rows[1].place, testing::EndsWith(", line 3"));
  EXPECT_EQ(rows[2].completion->text, "c");
  EXPECT_FALSE(rows[2].text);
  EXPECT_EQ(rows[3].prompt->kind, Field::Kind::kMessages);
  EXPECT_THAT(rows[3].prompt->messages, ElementsAre(Message{"user", "hi"}));
  EXPECT_EQ(rows[3].rejected->text, "");
  EXPECT_EQ(rows[4].messages->messages.size(), 2u);
  EXPECT_THAT(rows[5].tokens->tokens, ElementsAre(3, 0, 50271));
  EXPECT_THAT(rows[6].prompt->tokens, ElementsAre(1));
  EXPECT_EQ(rows[6].other, "{}");
}

TEST(Rows, ArraysAndGzipReadTheSameAsLines) {
  std::string lines;
  std::string array = "\xEF\xBB\xBF\n [";
  for (int i = 0; i < 5000; ++i) {
    const std::string row = str(R"({"prompt": "number )", i, R"( …", "n": )", i, "}");
    lines += row + "\n";
    array += (i ? ",\n" : "") + row;
  }
  array += "]\n";
  const std::vector<Row> plain = RowFile(lines).rows();
  ASSERT_EQ(plain.size(), 5000u);
  for (const auto& [content, ending] :
       {std::pair{gzip(lines), ".jsonl.gz"}, {array, ".json"}, {gzip(array), ".json.gz"}}) {
    const std::vector<Row> rows = RowFile(content, ending).rows();
    ASSERT_EQ(rows.size(), plain.size()) << ending;
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(rows[i].prompt->text, plain[i].prompt->text);
      ASSERT_EQ(rows[i].other, plain[i].other);
    }
  }
}

TEST(Rows, ErrorsNameFileLineAndWhatWasFound) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"prompt\": 7}", "'prompt' is 7"},
      {"{\"prompt\": \"a\"", "is no JSON"},
      {"[1, 2]\n", "row 1: the row is 1"},
      {"\"text\"", "the row is \"text\""},
      {"{\"question\": \"a\", \"reply\": \"b\"}", "(question, reply)"},
      {"{\"prompt\": \"a\", \"chosen\": \"b\"}", "'chosen' without 'rejected'"},
      {"{\"chosen\": \"a\", \"rejected\": \"b\"}", "'chosen' without 'prompt'"},
      {"{\"completion\": \"a\"}", "'completion' without 'prompt'"},
      {"{\"messages\": []}", "'messages' is []"},
      {"{\"messages\": [{\"role\": \"user\"}]}", "{\"role\":\"user\"}"},
      {"{\"tokens\": [1, -1]}", "'tokens' holds -1"},
      {"{\"tokens\": [1.5]}", "'tokens' holds 1.5"},
      {"{\"text\": \"\xFF\"}", "is no JSON"}};
  for (const auto& [row, what] : cases) {
    const bool array = row[0] == '[';
    const RowFile file(array ? row : str("{\"prompt\": \"good\"}\n", row));
    const auto [sentence, help] = file.refusal();
    EXPECT_THAT(sentence, HasSubstr(what));
    EXPECT_THAT(sentence, HasSubstr(file.path().string() + (array ? ", row 1" : ", line 2")));
  }
  EXPECT_THAT(RowFile("\n \n").refusal().first, HasSubstr("no rows in"));
}

TEST(Rows, DamagedGzipIsAnError) {
  std::string bytes = gzip(str(R"({"prompt": ")", std::string(3000, 'x'), "\"}\n"));
  EXPECT_THAT(RowFile(bytes.substr(0, bytes.size() - 9), ".gz").refusal().first,
              HasSubstr("is damaged"));
  bytes[bytes.size() - 6] ^= 1;
  EXPECT_THAT(RowFile(bytes, ".gz").refusal().first, HasSubstr("is damaged"));
}

TEST(Rows, OtherFormatsAreRefusedWithTheConversion) {
  EXPECT_THAT(RowFile("PAR1....", ".bin").refusal().second, HasSubstr("read_parquet"));
  EXPECT_THAT(RowFile("x", ".parquet").refusal().second, HasSubstr("read_parquet"));
  EXPECT_THAT(RowFile("ARROW1", ".arrow").refusal().second, HasSubstr("Dataset.from_file"));
  for (const auto& [name, help] : {std::pair{"Dahoas/rm-static", "load_dataset('Dahoas/rm-static'"},
                                   {"/tmp", "load_from_disk"}}) {
    try {
      read_rows({name});
      FAIL();
    } catch (const InputError& error) {
      EXPECT_THAT(error.help(), HasSubstr(help));
    }
  }
  EXPECT_THROW(read_rows({"missing.jsonl"}), InputError);
}

TEST(Permutation, IsAPermutationThatDependsOnSeedAndEpochOnly) {
  for (const int64_t n : {0, 1, 2, 7, 1000}) {
    std::vector<int64_t> order = permutation(5, 3, n);
    EXPECT_EQ(order, permutation(5, 3, n));
    if (n > 2) {
      EXPECT_NE(order, permutation(5, 4, n));
      EXPECT_NE(order, permutation(6, 3, n));
    }
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(order[i], i);
    }
  }
}

TEST(Permutation, AllOrdersAreEquallyLikely) {
  std::map<std::vector<int64_t>, int> counts;
  for (int64_t epoch = 0; epoch < 24'000; ++epoch) {
    ++counts[permutation(1234, epoch, 4)];
  }
  EXPECT_EQ(counts.size(), 24u);
  for (const auto& [order, count] : counts) {
    EXPECT_NEAR(count, 1000, 160);
  }
}

}  // namespace
}  // namespace reknit
