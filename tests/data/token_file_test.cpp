// Token files: what is written is read, and every damage is refused with its value.
#include "reknit/data/token_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/data/token_support.h"

namespace reknit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int64_t> sequence(const TokenFile& file, int64_t index) {
  std::vector<int64_t> tokens(file.length(index));
  file.read(index, 0, tokens);
  return tokens;
}

TEST(TokenFile, TheHandMadeIndexIsReadAsItIs) {
  HandMadeIndex index = index_of({5, 3, 4});
  EXPECT_THAT(index.places, ElementsAre(0, 10, 16));
  const auto file = numbered_file({5, 3, 4});
  EXPECT_EQ(file->type(), TokenType::kU16);
  EXPECT_EQ(file->sequences(), 3);
  EXPECT_EQ(file->documents(), 3);
  EXPECT_EQ(file->tokens(), 12);
  EXPECT_THAT(sequence(*file, 1), ElementsAre(100, 101, 102));
  std::vector<int64_t> two(2);
  file->read(2, 1, two);
  EXPECT_THAT(two, ElementsAre(201, 202));
}

TEST(TokenFile, WhatIsWrittenIsReadInEveryType) {
  const std::vector<std::pair<TokenType, int64_t>> largest = {
      {TokenType::kU8, 255},        {TokenType::kI8, 127},
      {TokenType::kI16, 32767},     {TokenType::kI32, INT32_MAX},
      {TokenType::kI64, INT64_MAX}, {TokenType::kF64, int64_t{1} << 53},
      {TokenType::kF32, 1 << 24},   {TokenType::kU16, 65535}};
  for (const auto& [type, value] : largest) {
    SCOPED_TRACE(to_string(type));
    const TempFolder folder;
    TokenFileWriter writer(folder / "t", type);
    writer.add_sequence(std::vector<int64_t>{0, value, 1});
    writer.add_sequence(std::vector<int64_t>{});
    writer.end_document();
    writer.end_document();
    writer.add_sequence(std::vector<int64_t>{7});
    writer.commit();
    EXPECT_EQ(folder.count(), 2u);
    for (const char* name : {"t", "t.bin", "t.idx"}) {
      const auto file = TokenFile::open(folder / name);
      EXPECT_EQ(file->prefix(), folder / "t");
      EXPECT_EQ(file->type(), type);
      EXPECT_EQ(file->sequences(), 3);
      EXPECT_EQ(file->tokens(), 4);
      EXPECT_EQ(file->documents(), 3);
      EXPECT_EQ(file->document_begin(0), 0);
      EXPECT_EQ(file->document_begin(1), 2);
      EXPECT_EQ(file->document_begin(2), 2);
      EXPECT_EQ(file->document_begin(3), 3);
      EXPECT_THAT(sequence(*file, 0), ElementsAre(0, value, 1));
      EXPECT_THAT(sequence(*file, 1), ElementsAre());
      EXPECT_THAT(sequence(*file, 2), ElementsAre(7));
    }
  }
}

TEST(TokenFile, ATokenThatDoesNotFitIsRefused) {
  const TempFolder folder;
  TokenFileWriter writer(folder / "t", TokenType::kU16);
  const auto add = [&](int64_t token) {
    return refusal([&] { writer.add_sequence(std::vector<int64_t>{token}); });
  };
  EXPECT_THAT(add(65536), HasSubstr("the token 65536 does not fit into uint16"));
  EXPECT_THAT(add(-1), HasSubstr("the token -1 does not fit into uint16"));
}

TEST(TokenFile, NothingIsLeftWithoutCommitAndAnOlderPairStays) {
  const TempFolder folder;
  spit(folder / "t.bin", "old");
  {
    TokenFileWriter writer(folder / "t", TokenType::kU16);
    writer.add_sequence(std::vector<int64_t>{1});
  }
  EXPECT_EQ(slurp(folder / "t.bin"), "old");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(TokenFile, VocabulariesBelow65500TakeTwoBytes) {
  EXPECT_EQ(token_type_for(65499), TokenType::kU16);
  EXPECT_EQ(token_type_for(65500), TokenType::kI32);
}

TEST(TokenFile, EveryDamagedIndexIsRefusedWithItsValue) {
  const std::string tokens(24, '\1');
  const auto refused = [&](const std::string& index) {
    return refusal([&] { open_bytes(index, tokens); });
  };
  const auto changed = [&](auto change) {
    HandMadeIndex index = index_of({5, 3, 4});
    change(index);
    return refused(index.bytes());
  };
  const std::string good = index_of({5, 3, 4}).bytes();
  EXPECT_THAT(changed([](auto& i) { i.magic[3] = 'X'; }),
              HasSubstr("t.idx: is no index of tokens: it begins with the bytes (77 77 73 88"));
  EXPECT_THAT(changed([](auto& i) { i.magic[8] = 1; }), HasSubstr("no index of tokens"));
  EXPECT_THAT(refused(""), HasSubstr("no index of tokens"));
  EXPECT_THAT(changed([](auto& i) { i.version = 2; }), HasSubstr("has version 2"));
  EXPECT_THAT(changed([](auto& i) { i.code = 9; }), HasSubstr("has the token type 9"));
  EXPECT_THAT(changed([](auto& i) { i.code = 0; }), HasSubstr("has the token type 0"));
  EXPECT_THAT(changed([](auto& i) { i.documents[3] = 2; }),
              HasSubstr("the last document entry is 2, not the number of sequences, 3"));
  EXPECT_THAT(changed([](auto& i) { i.documents[0] = 1; }), HasSubstr("document entry 0 is 1"));
  EXPECT_THAT(changed([](auto& i) { i.documents[1] = 3; }),
              HasSubstr("document entry 2 is 2, outside 3 to 3"));
  EXPECT_THAT(changed([](auto& i) { i.documents[3] = 4; }), HasSubstr("document entry 3 is 4"));
  EXPECT_THAT(changed([](auto& i) { i.documents.clear(); }), HasSubstr("has 0 document entries"));
  EXPECT_THAT(changed([](auto& i) { i.places[2] = 18; }),
              HasSubstr("sequence 2 has 4 tokens of 2 bytes from byte 18 on, but t.bin has 24"));
  EXPECT_THAT(changed([](auto& i) { i.places[2] = INT64_MAX; }), HasSubstr("sequence 2 has"));
  EXPECT_THAT(changed([](auto& i) { i.places[1] = -2147483648; }),
              HasSubstr("sequence 1 begins at byte -2147483648 of .bin, before byte 10"));
  EXPECT_THAT(changed([](auto& i) { i.lengths[1] = -3; }), HasSubstr("sequence 1 has -3 tokens"));
  EXPECT_THAT(changed([](auto& i) { i.sequences_off_by = ~0ull; }), HasSubstr("2 sequences"));
  EXPECT_THAT(changed([](auto& i) { i.sequences_off_by = 1ull << 62; }),
              HasSubstr("need more than 2^63"));
  EXPECT_THAT(changed([](auto& i) { i.entries_off_by = 1; }), HasSubstr("5 document entries"));
  EXPECT_THAT(refused(index_of({}).bytes()), HasSubstr("holds 0 sequences"));
  EXPECT_THAT(refused(index_of({0, 0}).bytes()),
              HasSubstr("no tokens: all of its 2 sequences are empty"));
  EXPECT_THAT(refused(good + std::string(3, '\0')), HasSubstr("a multimodal index"));
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_NE(refused(good.substr(0, size)), "");
  }
}

TEST(TokenFile, AnIndexOfTheOlderFormIsNamedAndHowToConvertItIsSaid) {
  try {
    open_bytes(std::string("TNTIDX\0\0\1\0\0\0\0\0\0\0", 16), "");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the older form (TNTIDX"));
    EXPECT_THAT(error.help(), HasSubstr("docs/data.md"));
    EXPECT_EQ(error.code(), ExitCode::kInput);
  }
}

TEST(TokenFile, AValueThatIsNoTokenIsRefusedWhenItIsRead) {
  HandMadeIndex index = index_of({2});
  index.code = 3;  // int16
  const int16_t values[] = {3, -7};
  const auto file =
      open_bytes(index.bytes(), std::string(reinterpret_cast<const char*>(values), 4));
  EXPECT_THAT(refusal([&] { sequence(*file, 0); }),
              HasSubstr("t.bin: sequence 0 holds -7 at byte 2, which is no token id"));
  index.code = 7;  // float32
  const float halves[] = {3, 0.5};
  const auto floats =
      open_bytes(index.bytes(), std::string(reinterpret_cast<const char*>(halves), 8));
  EXPECT_THAT(refusal([&] { sequence(*floats, 0); }), HasSubstr("holds 0.5"));
}

// A .bin of more than 4 GiB that takes no room on the disk: the index counts three sequences
// of 2^31 - 1 tokens of one byte, so that the last begins beyond 2^32.
TEST(TokenFile, PlacesBeyondFourGiBAreReached) {
  const TempFolder folder;
  HandMadeIndex index = index_of({INT32_MAX, INT32_MAX, INT32_MAX, 3});
  index.code = 1;
  index.places = {0, INT32_MAX, 2ll * INT32_MAX, 3ll * INT32_MAX};
  ASSERT_GT(index.places[3], int64_t{1} << 32);
  spit(folder / "t.idx", index.bytes());
  const int fd = ::open((folder / "t.bin").c_str(), O_CREAT | O_WRONLY, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::pwrite(fd, "\5\6\7", 3, index.places[3]), 3);
  ::close(fd);
  const auto file = TokenFile::open(folder / "t");
  EXPECT_EQ(file->tokens(), 3ll * INT32_MAX + 3);
  EXPECT_THAT(sequence(*file, 3), ElementsAre(5, 6, 7));
  GptDatasetSpec spec;
  spec.sequence_length = 1 << 20;
  spec.shuffle = false;
  const GptDataset data(file, {0, 4}, spec);
  std::vector<int64_t> tokens((1 << 20) + 1);
  data.read(data.samples_in(1), tokens);  // the last place of the epoch, and on to the next
  const int64_t last = data.samples_in(1) << 20;
  EXPECT_EQ(tokens[file->tokens() - 3 - last], 5);
  EXPECT_EQ(tokens[file->tokens() - 1 - last], 7);
}

}  // namespace
}  // namespace reknit
