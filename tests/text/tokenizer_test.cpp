// Tokenizer files: what is honoured, what is refused, and in which words.
#include "reknit/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "reknit/base/error.h"
#include "reknit/text/byte_level.h"

namespace reknit {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int64_t>;

// 256 bytes at ids 0 to 255 by value, then "ab" 256, "abc" 257, " a" 258.
json small() {
  json vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    vocabulary[to_byte_letters({&raw, 1})] = byte;
  }
  vocabulary["ab"] = 256;
  vocabulary["abc"] = 257;
  vocabulary[to_byte_letters(" a")] = 258;
  const json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  return {
      {"version", "1.0"},
      {"added_tokens", json::array({{{"id", 259}, {"content", "</s>"}, {"special", true}}})},
      {"normalizer", nullptr},
      {"pre_tokenizer", level},
      {"post_processor", nullptr},
      {"decoder", level},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"a b", "ab c", "\u0120 a"}}}}};
}

Tokenizer made(const json& file) {
  return Tokenizer::from_json(file.dump(), "tokenizer.json");
}

std::string refusal(const json& file) {
  try {
    made(file);
  } catch (const InputError& error) {
    EXPECT_EQ(error.code(), ExitCode::kInput);
    return error.what();
  }
  return "accepted";
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / str("reknit_tokenizer_test_", getpid())) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  void write(const std::string& name, const json& value) const { write(name, value.dump()); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(Tokenizer, MergesByRankAndFindsAddedTokensInTheText) {
  const Tokenizer tokenizer = made(small());
  EXPECT_THAT(tokenizer.encode("abcab a</s>z"), ElementsAre(257, 256, 258, 259, 'z'));
  EXPECT_EQ(tokenizer.vocabulary_size(), 260);
  EXPECT_EQ(tokenizer.token(258), "\u0120a");
  EXPECT_EQ(tokenizer.bytes(258), " a");
  EXPECT_EQ(tokenizer.id("</s>"), 259);
  EXPECT_EQ(tokenizer.id("none"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(259));
  EXPECT_FALSE(tokenizer.is_special(1000));
}

TEST(Tokenizer, RefusesEveryComponentItDoesNotKnowByItsName) {
  const std::pair<const char*, const char*> components[] = {{"normalizer", "NFKC"},
                                                            {"normalizer", "NFC"},
                                                            {"pre_tokenizer", "Metaspace"},
                                                            {"pre_tokenizer", "Digits"},
                                                            {"post_processor", "BertProcessing"},
                                                            {"decoder", "WordPiece"},
                                                            {"model", "Unigram"}};
  for (const auto& [role, type] : components) {
    json file = small();
    file[role] = {{"type", type}};
    EXPECT_THAT(refusal(file), HasSubstr(str("'", type, "' is not supported")));
    EXPECT_THAT(refusal(file), HasSubstr(role));
  }
  for (const char* role : {"pre_tokenizer", "decoder"}) {
    json file = small();
    file[role] = nullptr;
    EXPECT_THAT(refusal(file), HasSubstr("not supported"));
  }
}

TEST(Tokenizer, RefusesModelOptionsItDoesNotKnow) {
  const std::pair<const char*, json> options[] = {{"dropout", 0.1},
                                                  {"continuing_subword_prefix", "##"},
                                                  {"end_of_word_suffix", "</w>"},
                                                  {"byte_fallback", true}};
  for (const auto& [key, value] : options) {
    json file = small();
    file["model"][key] = value;
    EXPECT_THAT(refusal(file), HasSubstr(key));
    file["model"][key] = nullptr;
    EXPECT_EQ(refusal(file), "accepted");
  }
}

TEST(Tokenizer, RefusesDamage) {
  json file = small();
  file["model"]["merges"].push_back("q z");
  EXPECT_THAT(refusal(file), HasSubstr("'qz'"));
  file = small();
  file["model"]["merges"].push_back("a b c");
  EXPECT_THAT(refusal(file), HasSubstr("merge 3"));
  file = small();
  file["model"]["vocab"]["ab"] = 255;
  EXPECT_THAT(refusal(file), HasSubstr("two tokens have the id 255"));
  for (const json& id : {json(-1), json(1.5), json("7"), json(1ull << 60)}) {
    file["model"]["vocab"]["ab"] = id;
    EXPECT_THAT(refusal(file), HasSubstr("id"));
  }
  file = small();
  file["added_tokens"][0]["id"] = 258;
  EXPECT_THAT(refusal(file), HasSubstr("258"));
  file["added_tokens"][0]["content"] = "ab";
  EXPECT_THAT(refusal(file), HasSubstr("256"));
  EXPECT_THROW(Tokenizer::from_json("{\"model\":", "t"), InputError);
  EXPECT_THROW(Tokenizer::from_json("[]", "t"), InputError);
  EXPECT_THROW(Tokenizer::from_json("", "t"), InputError);
}

TEST(Tokenizer, RefusesNestingThatCouldEndTheProcess) {
  json file = small();
  file["model"]["dropout"] = "deep";
  std::string text = file.dump();
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  text.replace(text.find("\"deep\""), 6, deep);
  try {
    Tokenizer::from_json(text, "tokenizer.json");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tokenizer.json: is nested deeper than 64"));
  }
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8AndSaysWhere) {
  const Tokenizer tokenizer = made(small());
  for (const std::string bad :
       {"ab\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE3\x81"}) {
    EXPECT_THROW(tokenizer.encode(bad), InputError);
  }
  try {
    tokenizer.encode("good \xE3\x81");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("byte 5"));
  }
}

TEST(Tokenizer, UnknownBytesBecomeTheUnknownTokenOrNothing) {
  json file = small();
  file["model"]["vocab"].erase("z");
  EXPECT_THAT(made(file).encode("azzb"), ElementsAre(256));
  file["model"]["unk_token"] = "q";
  EXPECT_THAT(made(file).encode("azzb"), ElementsAre('a', 'q', 'q', 'b'));
  file["model"]["fuse_unk"] = true;
  EXPECT_THAT(made(file).encode("azzb"), ElementsAre('a', 'q', 'b'));
}

TEST(Tokenizer, TheStreamHoldsBackWhatLaterIdsCanChange) {
  StreamDecoder stream(made(small()));
  std::vector<std::string> parts;
  for (const int64_t id : {0x61, 0xF0, 0x9F, 0x91, 0x8D, 0xE3, 0x61, 0xFF, 0xC3}) {
    parts.push_back(stream.add(id));
  }
  EXPECT_THAT(parts, ElementsAre("a", "", "", "", "👍", "", "\uFFFDa", "\uFFFD", ""));
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const Tokenizer tokenizer = made(small());
  const Ids expected = tokenizer.encode("abc ab cab abcabc </s>");
  std::vector<std::jthread> threads;
  std::array<bool, 4> equal{};
  for (bool& one : equal) {
    threads.emplace_back([&] {
      one = true;
      for (int i = 0; i < 2000; ++i) {
        one = one && tokenizer.encode("abc ab cab abcabc </s>") == expected;
        tokenizer.encode(str("word", i, " ", i * 7));
      }
    });
  }
  threads.clear();
  EXPECT_THAT(equal, testing::Each(true));
}

TEST(TokenizerFolder, AMissingTokenizerSaysWhatToPassOrCopy) {
  const Folder folder;
  folder.write("vocab.json", small()["model"]["vocab"]);
  try {
    Tokenizer::load(folder.path());
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr(folder.path().string()));
    EXPECT_EQ(error.help(), "pass --tokenizer, or copy tokenizer.json from the base model");
  }
}

TEST(TokenizerFolder, NamesSpecialTokensAndKeepsTheChatTemplate) {
  const Folder folder;
  folder.write("tokenizer.json", small());
  folder.write("tokenizer_config.json",
               json{{"eos_token", {{"content", "</s>"}, {"normalized", true}}},
                    {"pad_token", "<new>"},
                    {"chat_template", "{{ messages }}"},
                    {"added_tokens_decoder", {{"260", {{"content", "<more>"}}}}}});
  folder.write("special_tokens_map.json", json{{"bos_token", "abc"}, {"eos_token", "ab"}});
  folder.write("config.json", json{{"model_type", "gpt2"}, {"pad_token_id", 5}});
  Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.eos(), 259);
  EXPECT_EQ(tokenizer.bos(), 257);
  EXPECT_EQ(tokenizer.pad(), 261);
  EXPECT_EQ(tokenizer.unk(), std::nullopt);
  EXPECT_EQ(tokenizer.chat_template(), "{{ messages }}");
  EXPECT_THAT(tokenizer.encode("x<more><new>"), ElementsAre('x', 260, 261));
  folder.write("chat_template.jinja", std::string("newer"));
  folder.write("tokenizer_config.json", json{{"eos_token", nullptr}});
  tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.chat_template(), "newer");
  EXPECT_EQ(tokenizer.pad(), 5);
  EXPECT_THAT(tokenizer_files(folder.path()),
              ElementsAre("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                          "chat_template.jinja"));
}

TEST(TokenizerFolder, VocabularyAndMergesFollowTheModelType) {
  json vocabulary = small()["model"]["vocab"];
  vocabulary["</s>"] = 259;
  const Folder folder;
  folder.write("vocab.json", vocabulary);
  folder.write("merges.txt", std::string("#version: 0.2\na b\r\nab c\n\u0120 a\n"));
  folder.write("config.json", json{{"model_type", "opt"}});
  EXPECT_THAT(Tokenizer::load(folder.path()).encode("abc a</s>"), ElementsAre(259, 257, 258, 259));
  folder.write("tokenizer_config.json", json{{"add_bos_token", false}});
  EXPECT_THAT(Tokenizer::load(folder.path()).encode("abc"), ElementsAre(257));
  folder.write("config.json", json{{"model_type", "llama"}});
  try {
    Tokenizer::load(folder.path());
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'llama'"));
  }
}

TEST(TokenizerFolder, TheFirstDifferingIdIsFound) {
  const Tokenizer one = made(small());
  json file = small();
  EXPECT_EQ(one.first_difference(made(file)), std::nullopt);
  file["added_tokens"][0]["id"] = 262;
  EXPECT_EQ(one.first_difference(made(file)), 259);
}

}  // namespace
}  // namespace reknit
