// Checkpoints that DeepSpeed wrote (tests/golden/deepspeed_checkpoints.py): what they hold, and
// what is refused.
#include "reknit/checkpoint/deepspeed_folder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reknit/base/error.h"
#include "tests/checkpoint/checkpoint_support.h"
#include "tests/checkpoint/deepspeed_fixtures.h"

namespace reknit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::string_literals;

/// A fixture that a test may damage.
class Damaged {
 public:
  explicit Damaged(const std::string& name) : path_(folder_ / name) {
    std::filesystem::copy(deepspeed_fixture(name), path_, std::filesystem::copy_options::recursive);
  }
  std::string tag(const std::string& file) const { return path_ + "/global_step3/" + file; }
  std::string refusal() const {
    return sentence_of<InputError>([&] { DeepSpeedFolder opened(path_); });
  }

 private:
  TempFolder folder_;
  std::string path_;
};

constexpr const char* kModel = "mp_rank_00_model_states.pt";
std::string optim(int rank) {
  return str("zero_pp_rank_", rank, "_mp_rank_00_optim_states.pt");
}

TEST(DeepSpeedFolder, SaysHowTheRunWasAndHowFarItCame) {
  const DeepSpeedFolder folder(deepspeed_fixture("zero2_groups"));
  EXPECT_EQ(folder.zero_stage(), 2);
  EXPECT_EQ(folder.ranks(), 3);
  EXPECT_EQ(folder.version(), "0.19.8");
  EXPECT_EQ(folder.progress().steps, 3);
  EXPECT_EQ(folder.progress().skipped, 0);
  EXPECT_EQ(folder.progress().samples, 18);
  EXPECT_EQ(folder.progress().optimizer_steps, 3);
  EXPECT_EQ(folder.progress().scheduled, 3);
  EXPECT_FALSE(folder.progress().scaler);
  EXPECT_EQ(folder.progress().client, "iteration 3, note");
  EXPECT_THAT(folder.state_kinds(), ElementsAre("exp_avg", "exp_avg_sq"));
}

TEST(DeepSpeedFolder, AFolderOfMicsIsOneOfItsFirstShardGroup) {
  const DeepSpeedFolder folder(deepspeed_fixture("zero3_mics"));  // 4 ranks, groups of 2
  EXPECT_EQ(folder.zero_stage(), 3);
  EXPECT_EQ(folder.ranks(), 2);
  EXPECT_EQ(folder.version(), "0.17.6");
  EXPECT_EQ(folder.progress().steps, 3);
  EXPECT_EQ(folder.progress().samples, 24);
}

TEST(DeepSpeedFolder, UniversalCheckpointsAreRefusedWithWhatToDo) {
  const TempFolder root;
  const std::string step = root / "global_step3_universal";
  std::filesystem::create_directories(step + "/zero/model.norm.weight");
  spit(step + "/zero/optimizer_state.pt", "");
  spit(step + "/" + kModel, "");
  spit(root / "latest_universal", "global_step3_universal\n");
  for (const std::string& path : {root.path(), step}) {
    EXPECT_TRUE(DeepSpeedFolder::is_one(path));
    const std::string said = sentence_of<InputError>([&] { DeepSpeedFolder opened(path); });
    EXPECT_THAT(said, HasSubstr(path + " is a universal checkpoint of DeepSpeed"));
  }
  spit(root / "latest", "global_step3_universal");
  EXPECT_THAT(sentence_of<InputError>([&] { DeepSpeedFolder opened(root.path()); }),
              HasSubstr(step + " is a universal checkpoint"));
  try {
    DeepSpeedFolder opened(step);
  } catch (const InputError& error) {
    EXPECT_THAT(error.help(), HasSubstr("the folder that ds_to_universal read"));
  }
}

TEST(DeepSpeedFolder, TheTagsFolderIsTheSameCheckpoint) {
  const std::string path = deepspeed_fixture("zero1");
  EXPECT_TRUE(DeepSpeedFolder::is_one(path));
  EXPECT_TRUE(DeepSpeedFolder::is_one(path + "/global_step3"));
  EXPECT_FALSE(DeepSpeedFolder::is_one(path + "/global_step3/" + kModel));
  EXPECT_FALSE(DeepSpeedFolder::is_one(std::filesystem::path(path).parent_path()));
  EXPECT_EQ(DeepSpeedFolder(path).path(), DeepSpeedFolder(path + "/global_step3").path());
}

// The same fp32 training, cut in every way: stage 0 has it whole and by name.
TEST(DeepSpeedFolder, EveryStageHoldsTheSameMastersAndStates) {
  const DeepSpeedFolder whole(deepspeed_fixture("zero0"));
  const DeepSpeedFolder cut(deepspeed_fixture("zero3_subgroups"));
  ASSERT_EQ(cut.parameters().size(), whole.parameters().size());
  for (const TensorInfo& info : whole.parameters()) {
    if (info.name.ends_with("k_proj.bias")) {
      continue;  // its gradient is rounding alone
    }
    EXPECT_TRUE(at::allclose(cut.value(info.name), whole.value(info.name), 1e-4, 2e-5))
        << info.name;
    for (const std::string& kind : whole.state_kinds()) {
      EXPECT_TRUE(
          at::allclose(cut.state(info.name, kind), whole.state(info.name, kind), 1e-3, 1e-6))
          << info.name << " " << kind;
    }
  }
}

TEST(DeepSpeedFolder, FrozenParametersAreFoundWhereverTheStageKeepsThem) {
  const DeepSpeedFolder one(deepspeed_fixture("zero1_frozen"));
  const DeepSpeedFolder three(deepspeed_fixture("zero3_frozen"));
  const std::string frozen = "model.decoder.layers.0.fc1.weight";
  EXPECT_FALSE(three.trained(frozen));
  EXPECT_TRUE(three.trained("model.decoder.layers.1.fc1.weight"));
  EXPECT_THROW(three.state(frozen, "exp_avg"), InputError);
  ASSERT_EQ(one.parameters().size(), three.parameters().size());
  for (const TensorInfo& info : three.parameters()) {
    if (!three.trained(info.name)) {
      EXPECT_FALSE(one.trained(info.name)) << info.name;
      EXPECT_TRUE(at::equal(one.value(info.name), three.value(info.name))) << info.name;
    } else if (!info.name.ends_with("k_proj.bias")) {
      EXPECT_TRUE(at::allclose(one.value(info.name), three.value(info.name), 1e-4, 2e-5))
          << info.name;
    }
  }
}

TEST(DeepSpeedFolder, AFixedLossScaleIsNoneAndADynamicOneIsRead) {
  const auto scaler = DeepSpeedFolder(deepspeed_fixture("zero2_fp16")).progress().scaler;
  ASSERT_TRUE(scaler);
  EXPECT_EQ(scaler->iteration, 3);
  EXPECT_GT(scaler->scale, 1.0);
  EXPECT_TRUE(scaler->hysteresis);
  EXPECT_FALSE(DeepSpeedFolder(deepspeed_fixture("zero3_bf16")).progress().scaler);
}

TEST(DeepSpeedFolder, AMissingRankIsNamedWithTheNumberOfRanks) {
  const Damaged folder("zero2_groups");
  std::filesystem::remove(folder.tag(optim(1)));
  EXPECT_THAT(folder.refusal(), HasSubstr(str("lacks ", optim(1), ": its files say 3 ranks")));
  std::filesystem::remove(folder.tag(kModel));
  EXPECT_THAT(folder.refusal(), HasSubstr("no file *_model_states.pt"));
}

TEST(DeepSpeedFolder, FilesOfAnotherNumberOfRanksAreRefused) {
  const Damaged folder("zero2_groups");
  std::filesystem::copy(deepspeed_fixture("zero1") + "/global_step3/" + optim(1),
                        folder.tag(optim(2)), std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(folder.refusal(), HasSubstr("is of ZeRO-1 and 2 ranks"));
  const Damaged more("zero1");
  std::filesystem::copy(more.tag(optim(1)), more.tag(optim(2)));
  EXPECT_THAT(more.refusal(), HasSubstr(str("holds ", optim(2), ", but its files say 2 ranks")));
}

TEST(DeepSpeedFolder, FilesThatDeepSpeedDoesNotNameSoAreNoRanks) {
  const Damaged folder("zero1");
  std::filesystem::rename(folder.tag(optim(0)),
                          folder.tag("zero_pp_rank_00_mp_rank_00_optim_states.pt"));
  std::filesystem::copy(folder.tag(optim(1)), folder.tag("zero_pp_rank_1copy_optim_states.pt"));
  EXPECT_THAT(folder.refusal(), HasSubstr(str("lacks ", optim(0), ": its files say 2 ranks")));
}

TEST(DeepSpeedFolder, ADamagedFileIsNamed) {
  const Damaged folder("zero3");
  const std::string path = folder.tag(optim(2));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_THAT(folder.refusal(), HasSubstr(optim(2)));
}

TEST(DeepSpeedFolder, AnOptimizerThatHasTakenFewerThanNoStepsIsRefused) {
  const Damaged folder("zero1");
  const std::string path = folder.tag(optim(0));
  std::string bytes = slurp(path);
  // Its count is a tensor of one element; storages begin at multiples of 64 bytes.
  const auto bytes_of = [](float number) {
    return std::string(reinterpret_cast<char*>(&number), 4);
  };
  for (size_t at = 0; at < bytes.size(); at += 64) {
    if (bytes.compare(at, 4, bytes_of(3)) == 0) {
      bytes.replace(at, 4, bytes_of(-3));
    }
  }
  spit(path, bytes);
  EXPECT_THAT(folder.refusal(), HasSubstr(str(optim(0), " has -3 as step")));
}

TEST(DeepSpeedFolder, ShapesThatDoNotFitTheMastersAreRefused) {
  const Damaged folder("zero3");
  std::filesystem::copy(
      deepspeed_fixture("zero3_frozen") + "/global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt",
      folder.tag("zero_pp_rank_0_mp_rank_00_model_states.pt"),
      std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(folder.refusal(), HasSubstr("elements, a rank's parts of the parameters have"));
}

TEST(DeepSpeedFolder, OtherParallelismIsRefusedByTheNameOfItsFile) {
  const Damaged folder("zero1");
  std::filesystem::copy(folder.tag(kModel), folder.tag("mp_rank_01_model_states.pt"));
  EXPECT_THAT(folder.refusal(), HasSubstr("tensor parallelism"));
}

TEST(DeepSpeedFolder, ALatestThatNamesNothingIsRefused) {
  const Damaged folder("zero1");
  std::filesystem::rename(folder.tag(""), folder.tag("") + "../elsewhere");
  EXPECT_THAT(folder.refusal(), HasSubstr("names global_step3"));
}

TEST(DeepSpeedPickle, KnowsDeepSpeedsClassesOnlyWhereTheyAreAllowed) {
  const std::string stage =
      "\x80\x02"
      "cdeepspeed.runtime.zero.config\nZeroStageEnum\nK\x02\x85R."s;
  EXPECT_THAT(sentence_of<InputError>([&] { Pickle pickle(stage, "x"); }),
              HasSubstr("deepspeed.runtime.zero.config.ZeroStageEnum"));
  const Pickle pickle(stage, "x", PickleNames::kDeepSpeed);
  EXPECT_EQ(pickle.root().kind, PickleKind::kCall);
  EXPECT_EQ(pickle.root().items.at(0)->number, 2);
  const std::string system =
      "\x80\x02"
      "cposix\nsystem\nX\x01\x00\x00\x00x\x85R."s;
  EXPECT_THAT(
      sentence_of<InputError>([&] { Pickle refused(system, "x", PickleNames::kDeepSpeed); }),
      HasSubstr("posix.system"));
}

TEST(DeepSpeedPickle, AttributesAndRealNumbersAreData) {
  const std::string scaler =
      "\x80\x02"
      "cdeepspeed.runtime.fp16.loss_scaler\nLossScaler\n)\x81}X\x01\x00\x00\x00sG"
      "\x40\x09\x00\x00\x00\x00\x00\x00sb."s;
  const Pickle pickle(scaler, "x", PickleNames::kDeepSpeed);
  ASSERT_NE(pickle.root().state, nullptr);
  const PickleValue* value = DeepSpeedFile::find(*pickle.root().state, "s");
  ASSERT_NE(value, nullptr);
  EXPECT_EQ(value->real, 3.125);
}

}  // namespace
}  // namespace reknit
