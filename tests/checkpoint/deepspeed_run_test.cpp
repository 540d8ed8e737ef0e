// Going on with checkpoints of DeepSpeed: the losses and weights that DeepSpeed itself had
// when it went on, under any placement here.
#include "reknit/engine/deepspeed_run.h"

#include "reknit/checkpoint/json_text.h"
#include "reknit/checkpoint/safetensors.h"
#include "reknit/engine/lm_trainer.h"
#include "reknit/engine/parts.h"
#include "reknit/engine/runtime.h"
#include "reknit/models/name_map.h"
#include "tests/checkpoint/deepspeed_fixtures.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using testing::HasSubstr;
using testing_support::on_ranks;
using testing_support::rank_memory;

/// One run of tests/golden/deepspeed_checkpoints.py.
struct Golden {
  std::string path;
  nlohmann::json facts, config;
  ModelSpec spec;

  explicit Golden(const std::string& name)
      : path(deepspeed_fixture(name)),
        facts(read_json_object(path + "/golden.json")),
        config(read_json_object(path + "/config.json")),
        spec(ModelSpec::from_hf(config)) {}

  at::ScalarType dtype() const {
    const std::string name = facts.at("dtype");
    return name == "bf16" ? at::kBFloat16 : name == "fp16" ? at::kHalf : at::kFloat;
  }
  int64_t batch() const { return facts.at("batch"); }

  LmSequence sequence(int64_t step, int64_t row) const {
    std::vector<int64_t> tokens;
    for (int64_t at = 0; at < facts.at("length").get<int64_t>(); ++at) {
      tokens.push_back(2 + (31 * step + 17 * row + 7 * at * at + 3 * at) % 35);
    }
    return lm_sequence(tokens, static_cast<uint64_t>(step * batch() + row), {});
  }

  LmSettings settings() const {
    LmSettings settings;
    settings.micro_batch = 2;
    settings.trainer.lr = 0.01;
    settings.trainer.clip = 1.0;
    settings.trainer.optimizer.kind = AdamSettings{.beta2 = 0.98, .weight_decay = 0.05};
    settings.trainer.optimizer.decay_all = facts.at("decay_all");
    settings.trainer.scaler = {.initial = 524288, .window = 2, .hysteresis = 1};
    if (facts.at("config").contains("scheduler")) {
      settings.trainer.schedule = {.kind = ScheduleKind::kWarmupDecay,
                                   .warmup = 2,
                                   .total = 10,
                                   .min_lr = 0.001,
                                   .max_lr = 0.01};
    }
    return settings;
  }
};

struct Place {
  int world = 1;
  int stage = 0;
  int shard_size = 0;  ///< 0: the world
};

/// One rank's model in training, resumed from the golden checkpoint.
struct Rank {
  SlotPool pool{rank_memory};
  std::unique_ptr<Model> model;
  std::unique_ptr<LmTrainer> trainer;

  Rank(const Golden& golden, const Place& place, const std::shared_ptr<Communicator>& world,
       const LmSettings& settings) {
    const int shards = place.shard_size > 0 ? place.shard_size : world->size();
    model = make_model(golden.spec,
                       {.name = "model",
                        .dtype = golden.dtype(),
                        .placement = {place.stage, shards},
                        .allocator = {}},
                       StoreComms::over(world, shards), pool);
    pool.seal();
    trainer = std::make_unique<LmTrainer>(*model, settings);
    load_deepspeed(*model, trainer->trainer(), DeepSpeedFolder(golden.path));
  }

  double step(const Golden& golden, int64_t step, const Communicator& world) {
    const RankPart part = rank_part(golden.batch(), world.rank(), world.size());
    std::vector<LmSequence> mine;
    for (int64_t row = part.begin; row < part.end; ++row) {
      mine.push_back(golden.sequence(step, row));
    }
    return trainer->step(step, golden.batch(), mine).loss;
  }
};

/// Of the weights, but for the keys' biases: attention does not depend on them, so that
/// their gradients are rounding alone, which Adam makes steps of. Collective.
double largest_difference(Model& model, const SafetensorsFile& expected) {
  double largest = 0;
  for (const NamePiece& piece : name_map(model.decoder.spec())) {
    if (piece.optional) {
      continue;
    }
    const at::Tensor ours = model.store.read_full(piece.group, piece.param)
                                .narrow(0, piece.row_begin, piece.row_end - piece.row_begin)
                                .to(at::kCPU);
    const at::Tensor theirs = expected.read(piece.hf_name);
    at::Tensor difference =
        (piece.transposed ? ours.t() : ours).to(at::kFloat) - theirs.to(at::kFloat);
    if (piece.hf_name.ends_with("k_proj.bias")) {
      continue;
    }
    if (piece.hf_name.ends_with("c_attn.bias")) {
      difference.narrow(0, difference.numel() / 3, difference.numel() / 3).zero_();
    }
    largest = std::max(largest, difference.abs().max().item<double>());
  }
  return largest;
}

void expect_same_run(const Golden& golden, const Place& place, double loss_bound,
                     double weight_bound) {
  SCOPED_TRACE(str(golden.path, " on ", place.world, " ranks, stage ", place.stage));
  const SafetensorsFile weights(golden.path + "/golden.safetensors");
  on_ranks(place.world, [&](std::shared_ptr<Communicator> world) {
    Rank rank(golden, place, world, golden.settings());
    int64_t step = rank.trainer->trainer().steps();
    for (const nlohmann::json& loss : golden.facts.at("after")) {
      EXPECT_NEAR(rank.step(golden, step, *world), loss.get<double>(), loss_bound)
          << "step " << step;
      ++step;
    }
    EXPECT_LE(largest_difference(*rank.model, weights), weight_bound);
  });
}

TEST(DeepSpeedRun, Fp32RunsGoOnAsDeepSpeedDidUnderAnyPlacement) {
  for (const char* name :
       {"zero0", "zero1", "zero2_groups", "zero2_gpt2", "zero3", "zero3_subgroups", "zero3_mics"}) {
    const Golden golden(name);
    expect_same_run(golden, {1, 0}, 1e-5, 2e-5);
    expect_same_run(golden, {3, 3}, 1e-5, 2e-5);
  }
}

TEST(DeepSpeedRun, EveryPlacementHereTakesTheSameCheckpoint) {
  const Golden golden("zero3");
  for (const Place& place : {Place{2, 0}, Place{2, 1}, Place{4, 2}, Place{4, 3, 2}, Place{4, 3}}) {
    expect_same_run(golden, place, 1e-5, 2e-5);
  }
}

// 16-bit arithmetic rounds at other places: the losses agree as far as it goes.
TEST(DeepSpeedRun, SixteenBitRunsGoOnFromTheirMasters) {
  for (const char* name : {"zero0_bf16", "zero1_bf16", "zero3_bf16"}) {
    expect_same_run(Golden(name), {2, 3}, 2e-2, 2e-2);
  }
}

TEST(DeepSpeedRun, LossScaleAndSkippedStepsGoOnAsDeepSpeedDid) {
  const Golden golden("zero2_fp16");
  const DeepSpeedProgress progress = DeepSpeedFolder(golden.path).progress();
  on_ranks(2, [&](std::shared_ptr<Communicator> world) {
    Rank rank(golden, {2, 3}, world, golden.settings());
    const Trainer::State state = rank.trainer->trainer().state();
    EXPECT_EQ(state.scaler.scale, progress.scaler->scale);
    EXPECT_EQ(state.scaler.step, progress.scaler->iteration);
    EXPECT_EQ(state.steps, 3);
    EXPECT_EQ(state.applied, 3 - golden.facts.at("skipped").get<int64_t>());
  });
  expect_same_run(golden, {2, 3}, 1e-2, 2e-2);
}

std::string refusal(const Golden& golden, const LmSettings& settings) {
  return sentence_of<InputError>([&] {
    on_ranks(1, [&](std::shared_ptr<Communicator> world) { Rank(golden, {}, world, settings); });
  });
}

TEST(DeepSpeedRun, AnotherModelIsRefusedWithItsShapes) {
  Golden golden("zero1");
  golden.config["vocab_size"] = 40;
  golden.config["num_hidden_layers"] = 3;
  golden.spec = ModelSpec::from_hf(golden.config);
  const std::string said = refusal(golden, golden.settings());
  EXPECT_THAT(said, HasSubstr("model.decoder.embed_tokens.weight is [37, 8] where the "
                              "configuration asks for [40, 8]"));
  EXPECT_THAT(said, HasSubstr("model.decoder.layers.2.fc1.weight is missing"));
}

TEST(DeepSpeedRun, AModelWithoutSomeOfItsParametersIsRefusedByTheirNames) {
  Golden golden("zero1");
  golden.config["num_hidden_layers"] = 1;
  golden.spec = ModelSpec::from_hf(golden.config);
  const std::string sentence = "the configuration has no model.decoder.layers.1.fc1.weight";
  EXPECT_THAT(refusal(golden, golden.settings()), HasSubstr(sentence));
  const TempFolder out;
  EXPECT_THAT(sentence_of<InputError>([&] {
                export_deepspeed(DeepSpeedFolder(golden.path),
                                 HfFolder::without_weights(golden.config, ""), at::kFloat,
                                 out / "model", IfPresent::kRefuse);
              }),
              HasSubstr(sentence));
}

TEST(DeepSpeedRun, AnotherOptimizerIsRefusedWithBothLists) {
  const Golden golden("zero1");
  LmSettings settings = golden.settings();
  settings.trainer.optimizer.kind = SgdSettings{.momentum = 0.9};
  EXPECT_THAT(refusal(golden, settings),
              HasSubstr("holds the optimizer states exp_avg, exp_avg_sq"));
}

TEST(DeepSpeedRun, WhatWasFrozenThereIsNotTrainedHereWithoutItsStates) {
  const Golden golden("zero3_frozen");
  EXPECT_THAT(refusal(golden, golden.settings()), HasSubstr("as frozen"));
}

TEST(DeepSpeedRun, TheExportedFolderHoldsTheMastersUnderTheirNames) {
  for (const char* name : {"zero2_gpt2", "zero3_frozen"}) {
    SCOPED_TRACE(name);
    const Golden golden(name);
    const DeepSpeedFolder checkpoint(golden.path);
    const TempFolder out;
    export_deepspeed(checkpoint, HfFolder::without_weights(golden.config, ""), at::kFloat,
                     out / "model", IfPresent::kRefuse);
    const HfFolder written(out / "model");
    ASSERT_EQ(written.tensors().size(), checkpoint.parameters().size());
    for (const TensorInfo& info : checkpoint.parameters()) {
      EXPECT_TRUE(at::equal(written.read(info.name), checkpoint.value(info.name))) << info.name;
    }
  }
}

TEST(DeepSpeedRun, AnExportNeverReplacesTheCheckpointThatItReads) {
  const Golden golden("zero1");
  const TempFolder root;
  const std::string path = root / "run/checkpoint";
  std::filesystem::create_directories(root / "run");
  std::filesystem::copy(golden.path, path, std::filesystem::copy_options::recursive);
  const DeepSpeedFolder checkpoint(path);
  const HfFolder source = HfFolder::without_weights(golden.config, "");
  for (const std::string& out :
       {root / "run", path, checkpoint.path(), checkpoint.path() + "/hf"}) {
    EXPECT_THAT(sentence_of<UsageError>([&] {
                  export_deepspeed(checkpoint, source, at::kFloat, out, IfPresent::kReplace);
                }),
                HasSubstr("lies over the checkpoint"));
  }
  EXPECT_EQ(DeepSpeedFolder(path).parameters().size(), checkpoint.parameters().size());
  export_deepspeed(checkpoint, source, at::kFloat, path + "/beside", IfPresent::kReplace);
}

}  // namespace
}  // namespace reknit
