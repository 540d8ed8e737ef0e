// Files and folders appear whole or not at all, and failures leave nothing behind.
#include "reknit/base/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "reknit/base/write_error.h"
#include "tests/checkpoint/checkpoint_support.h"

namespace reknit {
namespace {

using testing::HasSubstr;

TEST(AtomicFile, KeepsTheOldFileUntilCommitAndReplacesItThen) {
  const TempFolder folder;
  spit(folder / "a", "old");
  AtomicFile file(folder / "a");
  file.write("ne");
  file.write_at(2, "w!");
  file.write_at(0, "N");
  EXPECT_EQ(slurp(folder / "a"), "old");
  file.commit();
  EXPECT_EQ(slurp(folder / "a"), "New!");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const TempFolder folder;
  { AtomicFile(folder / "a").write("half"); }
  EXPECT_EQ(folder.count(), 0u);
}

TEST(AtomicFile, SaysWhichPathCannotBeCreated) {
  const TempFolder folder;
  EXPECT_THAT(sentence_of<UsageError>([&] { AtomicFile file(folder / "none/a"); }),
              HasSubstr(folder / "none/a"));
  spit(folder / "file", "");
  EXPECT_THROW(AtomicFile(folder / "file/a"), UsageError);
}

TEST(AtomicFile, SaysWhichPathTheDiskHadNoRoomFor) {
  const TempFolder folder;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string sentence =
      sentence_of<WriteError>([&] { write_file(folder / "large", std::string(4000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(sentence, HasSubstr(folder / "large"));
  EXPECT_EQ(folder.count(), 0u);
}

TEST(AtomicFolder, AppearsWithAllItsFilesAtCommit) {
  const TempFolder folder;
  AtomicFolder out(folder / "new/model/");
  spit(out.aside() + "/a", "1");
  std::filesystem::create_directory(out.aside() + "/sub");
  spit(out.aside() + "/sub/b", "2");
  EXPECT_FALSE(std::filesystem::exists(folder / "new/model"));
  out.commit();
  EXPECT_EQ(slurp(folder / "new/model/a") + slurp(folder / "new/model/sub/b"), "12");
  EXPECT_FALSE(std::filesystem::exists(out.aside()));
}

TEST(AtomicFolder, LeavesNothingWithoutCommit) {
  const TempFolder folder;
  {
    const AtomicFolder out(folder / "model");
    spit(out.aside() + "/a", "1");
  }
  EXPECT_EQ(folder.count(), 0u);
}

TEST(AtomicFolder, TakesAnEmptyFolderAndRefusesAFullOneOrAFile) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "empty");
  AtomicFolder out(folder / "empty");
  spit(out.aside() + "/a", "1");
  out.commit();
  EXPECT_EQ(slurp(folder / "empty/a"), "1");
  EXPECT_THAT(sentence_of<UsageError>([&] { AtomicFolder again(folder / "empty"); }),
              HasSubstr("not empty"));
  EXPECT_THROW(AtomicFolder(folder / "empty/a", IfPresent::kReplace), UsageError);
}

TEST(AtomicFolder, ReplacesAnOlderFolderWholeWhenAsked) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "model");
  spit(folder / "model/old", "1");
  AtomicFolder out(folder / "model", IfPresent::kReplace);
  spit(out.aside() + "/new", "2");
  EXPECT_TRUE(std::filesystem::exists(folder / "model/old"));
  out.commit();
  EXPECT_TRUE(std::filesystem::exists(folder / "model/new"));
  EXPECT_FALSE(std::filesystem::exists(folder / "model/old"));
  EXPECT_EQ(folder.count(), 1u);
}

}  // namespace
}  // namespace reknit
