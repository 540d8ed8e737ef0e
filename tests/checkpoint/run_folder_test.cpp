// Checksums, manifests, and which checkpoint of a folder is the newest whole one.
#include "reknit/checkpoint/run_folder.h"

#include "reknit/base/error.h"
#include "reknit/checkpoint/checksum.h"
#include "tests/checkpoint/checkpoint_support.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using testing::HasSubstr;

// A folder as a save leaves it, with two files.
std::string make_step(const TempFolder& out, int64_t step, int64_t serial) {
  const std::string path = out / step_folder_name(step);
  std::filesystem::create_directory(path);
  spit(path + "/a", std::string(100, 'a'));
  spit(path + "/b", "");
  write_manifest(path,
                 {serial, {{"a", record_file(path + "/a")}, {"b", record_file(path + "/b")}}});
  return path;
}

TEST(Checksum, IsXxh64) {
  EXPECT_EQ(checksum_text(checksum("")), "ef46db3751d8e999");
  EXPECT_EQ(checksum_text(checksum("abc")), "44bc2cf5ad770999");
  EXPECT_EQ(checksum_text(checksum("Nobody inspects the spammish repetition")), "fbcea83c8a378bf1");
}

TEST(Checksum, EveryBitOfEveryLengthCounts) {
  for (size_t length = 1; length < 70; ++length) {
    std::string bytes(length, 'x');
    const uint64_t before = checksum(bytes);
    for (size_t i = 0; i < length; ++i) {
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
      EXPECT_NE(checksum(bytes), before) << length << " " << i;
      bytes[i] = 'x';
    }
  }
}

TEST(RunFolder, ManifestsComeBackAsWritten) {
  const TempFolder out;
  const Manifest manifest{7, {{"x", {5, 0xffffffffffffffffull}}, {"y", {0, 1}}}};
  write_manifest(out.path(), manifest);
  EXPECT_EQ(read_manifest(out.path()).serial, 7);
  EXPECT_EQ(read_manifest(out.path()).files, manifest.files);
}

TEST(RunFolder, AManifestWhoseChecksumsAreNoneIsAnInputError) {
  const TempFolder out;
  for (const std::string text : {"not hexadecimal!", "0123456789abcdef0", ""}) {
    nlohmann::json json{{"serial", 1}, {"files", {{"a", {{"bytes", 1}, {"checksum", text}}}}}};
    json["checksum"] = checksum_text(checksum(json.dump()));
    spit(out / "complete.json", json.dump());
    EXPECT_THAT(sentence_of<InputError>([&] { read_manifest(out.path()); }),
                HasSubstr("is no checksum"));
  }
}

TEST(RunFolder, NamesSortByStepAndHoldAnyStep) {
  EXPECT_EQ(step_folder_name(12), "step-000012");
  EXPECT_EQ(step_folder_name(12345678), "step-12345678");
}

TEST(RunFolder, NothingIsFoundWhereNothingWasSaved) {
  const TempFolder out;
  EXPECT_EQ(find_newest_whole(out.path()), std::nullopt);
  EXPECT_EQ(find_newest_whole(out / "absent"), std::nullopt);
  EXPECT_EQ(next_serial(out.path()), 1);
}

TEST(RunFolder, TheNewestIsTheOneSavedLastNotTheHighestStep) {
  const TempFolder out;
  make_step(out, 10, 1);
  make_step(out, 20, 2);
  const std::string last = make_step(out, 15, 3);
  EXPECT_EQ(find_newest_whole(out.path()), last);
  EXPECT_EQ(next_serial(out.path()), 4);
}

TEST(RunFolder, TornCheckpointsAreSkippedWithALineThatSaysWhy) {
  const std::vector<std::pair<std::function<void(const std::string&)>, std::string>> damages{
      {[](const std::string& path) { std::filesystem::remove(path + "/a"); }, "/a"},
      {[](const std::string& path) { std::filesystem::resize_file(path + "/a", 99); },
       "has 99 bytes"},
      {[](const std::string& path) { spit(path + "/a", std::string(100, 'b')); }, "checksum"},
      {[](const std::string& path) { std::filesystem::remove(path + "/complete.json"); },
       "complete.json"},
      {[](const std::string& path) { std::filesystem::resize_file(path + "/complete.json", 20); },
       "complete.json"},
      {[](const std::string& path) { spit(path + "/complete.json", "{}"); }, "complete.json"},
  };
  for (const auto& [damage, reason] : damages) {
    const TempFolder out;
    const std::string whole = make_step(out, 1, 1);
    const std::string torn = make_step(out, 2, 2);
    damage(torn);
    testing::internal::CaptureStderr();
    EXPECT_EQ(find_newest_whole(out.path()), whole);
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr(torn));
    EXPECT_THAT(log, HasSubstr(reason));
  }
}

TEST(RunFolder, WhereNoneIsWholeNothingStartsAfresh) {
  const TempFolder out;
  std::filesystem::remove(make_step(out, 1, 1) + "/a");
  std::filesystem::remove(make_step(out, 2, 2) + "/complete.json");
  testing::internal::CaptureStderr();
  EXPECT_THAT(sentence_of<InputError>([&] { find_newest_whole(out.path()); }),
              HasSubstr("none of the 2 checkpoints in " + out.path() + " is whole"));
  testing::internal::GetCapturedStderr();
}

TEST(RunFolder, AFlippedBitAnywhereInTheManifestIsNoticed) {
  const TempFolder out;
  const std::string whole = make_step(out, 1, 1);
  const std::string torn = make_step(out, 2, 2);
  const std::string text = slurp(torn + "/complete.json");
  testing::internal::CaptureStderr();
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    spit(torn + "/complete.json", damaged);
    EXPECT_EQ(find_newest_whole(out.path()), whole) << i << " " << damaged.substr(i, 10);
  }
  testing::internal::GetCapturedStderr();
}

TEST(RunFolder, OnlyTheLastSavedStayAndDamagedOnesDoNotCount) {
  const TempFolder out;
  make_step(out, 1, 1);
  make_step(out, 2, 2);
  make_step(out, 3, 3);
  make_step(out, 4, 4);
  std::filesystem::remove(out / "step-000004/a");
  std::filesystem::create_directory(out / "actor");
  remove_older(out.path(), 2);
  EXPECT_FALSE(std::filesystem::exists(out / "step-000001"));
  EXPECT_TRUE(std::filesystem::exists(out / "step-000002"));
  EXPECT_TRUE(std::filesystem::exists(out / "step-000003"));
  EXPECT_TRUE(std::filesystem::exists(out / "step-000004"));
  EXPECT_TRUE(std::filesystem::exists(out / "actor"));
}

TEST(RunFolder, UnfinishedSavesGoAndNothingElse) {
  const TempFolder out;
  make_step(out, 1, 1);
  std::filesystem::create_directory(out / "step-000002.partial-123-0");
  std::filesystem::create_directory(out / "actor.partial-123-0");
  remove_unfinished(out.path());
  EXPECT_EQ(out.count(), 2u);
  EXPECT_FALSE(std::filesystem::exists(out / "step-000002.partial-123-0"));
}

TEST(RunFolder, AnotherFolderThanTheRunBeganWithIsNamedByItsFirstFile) {
  const TempFolder folder;
  spit(folder / "config.json", "{}");
  spit(folder / "model.safetensors", "weights");
  const nlohmann::json recorded = fingerprint_folder(folder.path());
  EXPECT_NO_THROW(require_fingerprint(recorded, folder.path(), "reference"));
  spit(folder / "model.safetensors", "wEights");
  const std::string sentence =
      sentence_of<InputError>([&] { require_fingerprint(recorded, folder.path(), "reference"); });
  EXPECT_THAT(sentence, HasSubstr("reference"));
  EXPECT_THAT(sentence, HasSubstr("model.safetensors differs"));
  std::filesystem::remove(folder / "config.json");
  EXPECT_THAT(
      sentence_of<InputError>([&] { require_fingerprint(recorded, folder.path(), "reference"); }),
      HasSubstr("config.json"));
}

}  // namespace
}  // namespace reknit
