// Saves that are written while the run goes on.
#include "reknit/engine/run_saver.h"

#include "tests/checkpoint/checkpoint_support.h"
#include "tests/support/golden.h"
#include "tests/support/toy_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using namespace testing_support;
using testing::HasSubstr;

const ToyModel kToy = run_toy_model();
const nlohmann::json kExtra{{"ema", 0.1}};

TEST(RunSaver, TrainingGoesOnAndTheFilesAreThoseOfTheStepThatWasSaved) {
  for (const RunPlace& place :
       {RunPlace{.world = 3}, RunPlace{.world = 2, .zero_stage = 0, .dtype = at::kBFloat16},
        RunPlace{.world = 4, .shard_size = 2, .dtype = at::kHalf}}) {
    SCOPED_TRACE(testing::Message() << place);
    const TempFolder out;
    on_ranks(place.world, [&](std::shared_ptr<Communicator> comm) {
      ToyRank rank(kToy, place, comm);
      load_toy(rank.store(), kToy);
      RunSaver saver;
      for (int save = 0; save < 3; ++save) {
        rank.train(1);
        rank.save(out / "waited", 0);
        saver.start(rank.state(), kExtra, out / "background", 0, SaveFrom::kCopy);
        EXPECT_TRUE(saver.in_flight());
        rank.train(2);
        saver.poll();
      }
      saver.wait();
      EXPECT_FALSE(saver.in_flight());
    });
    for (const int64_t step : {1, 4, 7}) {
      const Manifest waited = read_manifest(out / ("waited/" + step_folder_name(step)));
      const Manifest background = read_manifest(out / ("background/" + step_folder_name(step)));
      EXPECT_EQ(waited.files, background.files) << step;
      EXPECT_EQ(waited.serial, background.serial) << step;
    }
    EXPECT_EQ(find_newest_whole(out / "background"), out / ("background/" + step_folder_name(7)));
  }
}

TEST(RunSaver, AFolderHasNoNameBeforeAllRanksHaveSeenThatAllAreDone) {
  const TempFolder out;
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 2}, comm);
    RunSaver saver;
    saver.poll();  // none: nothing to do
    const std::string path = saver.start(rank.state(), kExtra, out.path(), 2, SaveFrom::kCopy);
    comm->barrier();
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_EQ(find_newest_whole(out.path()), std::nullopt);
    comm->barrier();
    saver.wait();
    EXPECT_TRUE(std::filesystem::exists(path));
  });
  EXPECT_EQ(out.count(), 1u);
}

TEST(RunSaver, TheNextSaveWaitsForTheOneBefore) {
  const TempFolder out;
  on_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 3}, comm);
    RunSaver saver;
    for (int i = 0; i < 4; ++i) {
      rank.train(1);
      saver.start(rank.state(), kExtra, out.path(), 2, SaveFrom::kCopy);
      if (comm->rank() == 0 && i > 0) {
        EXPECT_TRUE(std::filesystem::exists(out / step_folder_name(i)));
      }
    }
    saver.wait();
  });
  EXPECT_EQ(out.count(), 2u);
  EXPECT_TRUE(std::filesystem::exists(out / step_folder_name(4)));
}

TEST(RunSaver, ASaveThatIsGivenUpIsNeverChosenAndTheNextRemovesIt) {
  const TempFolder out;
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 2}, comm);
    {
      RunSaver saver;
      saver.start(rank.state(), kExtra, out.path(), 2, SaveFrom::kCopy);
    }
    comm->barrier();
    EXPECT_EQ(find_newest_whole(out.path()), std::nullopt);
    comm->barrier();
    rank.train(1);
    rank.save(out.path());
  });
  EXPECT_EQ(out.count(), 1u);
}

TEST(RunSaver, AFailureInTheBackgroundIsThrownByAPollAndEndsAllRanks) {
  const TempFolder out;
  std::mutex mutex;
  std::vector<std::string> said;
  on_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 3}, comm);
    RunState run = rank.state();
    if (comm->rank() == 2) {
      run.models[0].name = "no/such/folder";
    }
    RunSaver saver;
    saver.start(run, kExtra, out.path(), 2, SaveFrom::kCopy);
    const std::string sentence = sentence_of<Error>([&] { saver.wait(); });
    const std::lock_guard lock(mutex);
    said.push_back(sentence);
  });
  EXPECT_THAT(said, testing::SizeIs(3));
  EXPECT_THAT(said, testing::Each(HasSubstr("no/such/folder")));
  EXPECT_EQ(find_newest_whole(out.path()), std::nullopt);
}

}  // namespace
}  // namespace reknit
