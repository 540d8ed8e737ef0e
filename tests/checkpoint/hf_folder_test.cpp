// Model folders: one model in every form, indexes that lie, the cache, the export.
#include "reknit/checkpoint/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "reknit/base/error.h"
#include "reknit/checkpoint/safetensors.h"
#include "tests/checkpoint/checkpoint_support.h"

namespace reknit {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kShard[] = {"model-00001-of-00003.safetensors",
                              "model-00002-of-00003.safetensors",
                              "model-00003-of-00003.safetensors"};

void write_json(const std::string& path, const json& value) {
  spit(path, value.dump());
}

/// Six tensors w0..w5, two in each of three shards.
class ThreeShards : public testing::Test {
 protected:
  ThreeShards() {
    write_json(folder_ / "config.json", {{"model_type", "opt"}});
    for (int i = 0; i < 6; ++i) {
      map_["w" + std::to_string(i)] = kShard[i / 2];
    }
    for (int i = 0; i < 3; ++i) {
      write_safetensors(folder_ / kShard[i], {weight(2 * i), weight(2 * i + 1)});
    }
    write_index();
  }

  static std::pair<std::string, at::Tensor> weight(int i) {
    return {"w" + std::to_string(i), at::full({2, i + 1}, i)};
  }
  void write_index() {
    write_json(folder_ / "model.safetensors.index.json",
               {{"metadata", json::object()}, {"weight_map", map_}});
  }
  std::string refusal() {
    return sentence_of<InputError>([&] { HfFolder folder(folder_.path()); });
  }

  TempFolder folder_;
  json map_;
};

TEST_F(ThreeShards, AreOneSourceOfTensors) {
  const HfFolder folder(folder_.path());
  EXPECT_EQ(folder.config()["model_type"], "opt");
  EXPECT_TRUE(folder.generation_config().is_null());
  EXPECT_EQ(folder.tensors().size(), 6u);
  EXPECT_THAT(folder.find("w4")->shape, ElementsAre(2, 5));
  EXPECT_EQ(folder.find("w6"), nullptr);
  EXPECT_TRUE(at::equal(folder.read("w4"), weight(4).second));
  EXPECT_THROW(folder.read("w6"), InputError);
}

TEST_F(ThreeShards, AMissingFileIsNamedWithItsTensorsBeforeAnyLoad) {
  std::filesystem::remove(folder_ / kShard[1]);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("lacks 1 of the 3 files"), HasSubstr(kShard[1]),
                               HasSubstr("w2, w3"), Not(HasSubstr("w1")), HasSubstr("2 of 6")));
  std::filesystem::remove(folder_ / kShard[0]);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("lacks 2 of the 3 files"), HasSubstr(kShard[0])));
}

TEST_F(ThreeShards, ATensorInTheWrongFileIsNamedWithBothFiles) {
  map_["w1"] = kShard[2];
  write_index();
  EXPECT_THAT(refusal(), HasSubstr("w1 (named in " + kShard[2] + ", is in " + kShard[0] + ")"));
}

TEST_F(ThreeShards, ATensorInNoFileIsNamed) {
  map_["w9"] = kShard[2];
  map_["w8"] = kShard[0];
  write_index();
  EXPECT_THAT(refusal(), AllOf(HasSubstr("2 tensors"), HasSubstr("w9 (named in " + kShard[2]),
                               HasSubstr("is in no file")));
}

TEST_F(ThreeShards, ATensorThatTheIndexDoesNotListIsReportedAndNotRead) {
  map_.erase("w3");
  write_index();
  const HfFolder folder(folder_.path());
  EXPECT_EQ(folder.find("w3"), nullptr);
  EXPECT_THROW(folder.read("w3"), InputError);
}

TEST_F(ThreeShards, AHeaderBeyondTheEndOfItsFileIsNamed) {
  std::string bytes = slurp(folder_ / kShard[2]);
  bytes[1] = '\x7f';
  spit(folder_ / kShard[2], bytes);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(kShard[2]), HasSubstr("header length")));
}

TEST_F(ThreeShards, AnIndexThatLeavesTheFolderIsRefused) {
  map_["w1"] = "../" + kShard[0];
  write_index();
  EXPECT_THAT(refusal(), HasSubstr("no weight file of this folder"));
  spit(folder_ / "model.safetensors.index.json", "{\"weight_map\": 3}");
  EXPECT_THAT(refusal(), HasSubstr("weight_map"));
  spit(folder_ / "model.safetensors.index.json", "{\"weight_map\": {\"a\": \"b\", \"a\": \"c\"}}");
  EXPECT_THAT(refusal(), HasSubstr("\"a\" twice"));
}

TEST_F(ThreeShards, APlainFileComesBeforeAnIndexAndWeightsAreRequired) {
  write_safetensors(folder_ / "model.safetensors", {{"only", at::ones({1})}});
  EXPECT_EQ(HfFolder(folder_.path()).tensors().size(), 1u);
  std::filesystem::remove(folder_ / "model.safetensors");
  std::filesystem::remove(folder_ / "model.safetensors.index.json");
  EXPECT_THAT(refusal(), HasSubstr("has no weights"));
  std::filesystem::remove(folder_ / "config.json");
  EXPECT_THAT(refusal(), HasSubstr("config.json"));
}

TEST(HfCache, ResolvesANameThroughRefsMainAndSaysWhatIsMissing) {
  const TempFolder cache;
  ::setenv("HF_HUB_CACHE", cache.path().c_str(), 1);
  const std::string model = cache / "models--org--tiny";
  const auto refused = [](const std::string& name) {
    return sentence_of<InputError>([&] { find_hf_folder(name); });
  };
  EXPECT_THAT(refused("org/tiny"), HasSubstr(model));
  std::filesystem::create_directories(model + "/refs");
  EXPECT_THAT(refused("org/tiny"), HasSubstr("no refs/main"));
  spit(model + "/refs/main", "abc123\n");
  EXPECT_THAT(refused("org/tiny"), HasSubstr("abc123"));
  std::filesystem::create_directories(model + "/snapshots/abc123");
  EXPECT_EQ(find_hf_folder("org/tiny"), model + "/snapshots/abc123");
  EXPECT_EQ(find_hf_folder(cache.path()), cache.path());
  EXPECT_THAT(refused("/no/such/folder"), HasSubstr("no folder /no/such/folder"));
  EXPECT_THAT(refused("../org/tiny"), HasSubstr("no folder"));
  EXPECT_THAT(refused(model + "/refs/main"), HasSubstr("is a file"));
  ::unsetenv("HF_HUB_CACHE");
  ::setenv("HF_HOME", cache.path().c_str(), 1);
  EXPECT_THAT(refused("org/tiny"), HasSubstr(cache / "hub"));
  ::unsetenv("HF_HOME");
}

TEST(HfExport, IsSplitByBytesAndReadBack) {
  const TempFolder folder;
  const json config = {{"model_type", "opt"}};
  std::filesystem::create_directories(folder / "tokenizer/additional_chat_templates");
  spit(folder / "tokenizer/tokenizer.json", "{}");
  spit(folder / "tokenizer/notes.txt", "");
  spit(folder / "tokenizer/additional_chat_templates/tools.jinja", "tools");
  HfFolderContents contents{&config, nullptr, {}, folder / "tokenizer", 100};
  for (int i = 0; i < 4; ++i) {
    contents.tensors.push_back({"w" + std::to_string(i), at::kFloat, {10 + 10 * (i == 2)}});
  }
  std::vector<std::string> calls;
  const auto read = [&](const TensorInfo& info) {
    calls.push_back(info.name);
    return at::full(info.shape, static_cast<double>(calls.size()));
  };
  write_hf_folder(folder / "out", contents, read);
  EXPECT_THAT(calls, ElementsAre("w0", "w1", "w2", "w3"));
  const HfFolder out(folder / "out");
  EXPECT_EQ(out.read("w2").sum().item<float>(), 60);
  EXPECT_EQ(slurp(folder / "out/tokenizer.json"), "{}");
  EXPECT_EQ(slurp(folder / "out/additional_chat_templates/tools.jinja"), "tools");
  EXPECT_FALSE(std::filesystem::exists(folder / "out/notes.txt"));
  const json index = json::parse(slurp(folder / "out/model.safetensors.index.json"));
  EXPECT_EQ(index["weight_map"]["w2"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["metadata"]["total_size"], 200);
}

TEST(HfExport, LeavesNothingUnderTheNameIfATensorFails) {
  const TempFolder folder;
  const json config = json::object();
  const HfFolderContents contents{&config, nullptr, {{"w", at::kFloat, {1}}}, "", 100};
  const auto fail = [](const TensorInfo&) -> at::Tensor { throw CommError("a rank failed"); };
  EXPECT_THROW(write_hf_folder(folder / "out", contents, fail), CommError);
  EXPECT_EQ(folder.count(), 0u);
}

TEST(HfFolder, EveryFormOfAModelIsBitEqualAndItsExportLoadsInTransformers) {
  const TempFolder folder;
  run_golden_script("checkpoint_opt.py", {"write", folder.path()}, folder / "log.txt");
  const HfFolder single(folder / "single");
  EXPECT_EQ(single.config()["word_embed_proj_dim"], 8);
  for (const char* form : {"sharded", "bin", "bin_sharded"}) {
    const HfFolder other(folder / form);
    for (const TensorInfo& info : single.tensors()) {
      ASSERT_NE(other.find(info.name), nullptr) << form << " " << info.name;
      EXPECT_EQ(other.find(info.name)->shape, info.shape);
      EXPECT_TRUE(at::equal(other.read(info.name), single.read(info.name))) << info.name;
    }
  }
  HfFolderContents contents{&single.config(), &single.generation_config(), single.tensors(), {}};
  const auto read = [&](const TensorInfo& info) { return single.read(info.name); };
  write_hf_folder(folder / "exported", contents, read);
  contents.max_shard_bytes = 5000;
  write_hf_folder(folder / "exported_shards", contents, read);
  ASSERT_TRUE(std::filesystem::exists(folder / "exported_shards/model.safetensors.index.json"));
  run_golden_script("checkpoint_opt.py",
                    {"check", folder / "single", folder / "exported", folder / "exported_shards"},
                    folder / "check.txt");
}

}  // namespace
}  // namespace reknit
