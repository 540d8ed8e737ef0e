// Pretraining steps on thread ranks: no number depends on the placement, and dropout on,
// recomputed or resumed, it is the same run.
#include "reknit/engine/pretrain.h"

#include "reknit/engine/flops.h"
#include "reknit/engine/run_state.h"
#include "reknit/engine/runtime.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using testing::ElementsAre;
using testing_support::on_ranks;
using testing_support::rank_memory;

constexpr int64_t kVocab = 61;
constexpr int64_t kLength = 16;
constexpr int64_t kGlobalBatch = 6;

ModelSpec spec_of(const std::string& type) {
  nlohmann::json config = {{"model_type", type}, {"vocab_size", kVocab}};
  if (type == "gpt2") {
    config.update({{"n_embd", 24}, {"n_layer", 3}, {"n_head", 3}, {"n_positions", kLength}});
  } else if (type == "bloom") {
    config.update({{"hidden_size", 24},
                   {"n_layer", 2},
                   {"n_head", 4},
                   {"hidden_dropout", 0.2},
                   {"attention_dropout", 0.1}});
  } else {  // OPT-350m's shape
    config.update({{"hidden_size", 24},
                   {"word_embed_proj_dim", 12},
                   {"num_hidden_layers", 2},
                   {"num_attention_heads", 4},
                   {"ffn_dim", 40},
                   {"do_layer_norm_before", false},
                   {"max_position_embeddings", kLength},
                   {"attention_dropout", 0.1}});
  }
  return ModelSpec::from_hf(config);
}

/// Token files of 60 short sequences, each ending with token 0.
class PretrainRun : public testing::Test {
 protected:
  void SetUp() override {
    TokenFileWriter writer(folder_ / "tokens", TokenType::kU16);
    for (int sequence = 0; sequence < 60; ++sequence) {
      std::vector<int64_t> tokens;
      for (int i = 0; i < 3 + sequence % 29; ++i) {
        tokens.push_back(1 + (7 * i + sequence) % (kVocab - 1));
      }
      tokens.push_back(0);
      writer.add_sequence(tokens);
      writer.end_document();
    }
    writer.commit();
    blend_ = std::make_unique<TokenBlend>(parse_blend({folder_ / "tokens"}));
    train_ = blend_->part("8,2,0", Part::kTrain, {.sequence_length = kLength, .seed = 3});
    valid_ = blend_->part("8,2,0", Part::kValid, {.sequence_length = kLength, .seed = 3});
  }

  TempFolder folder_;
  std::unique_ptr<TokenBlend> blend_;
  std::shared_ptr<const BlendedDataset> train_, valid_;
};

struct How {
  std::string type = "gpt2";
  int world = 1;
  int zero_stage = 0;
  int64_t micro_batch = 2;
  Checkpointing checkpointing = {};
  at::ScalarType dtype = at::kFloat;
  DocumentRules documents = {};
};

/// One rank's model in training.
struct Rank {
  SlotPool pool{rank_memory};
  std::unique_ptr<Model> model;
  std::unique_ptr<Pretrain> pretrain;

  Rank(const How& setup, const std::shared_ptr<Communicator>& world,
       std::shared_ptr<const BlendedDataset> train) {
    model = make_model(spec_of(setup.type),
                       {.name = "model",
                        .dtype = setup.dtype,
                        .placement = {setup.zero_stage, world->size()},
                        .allocator = {}},
                       StoreComms::over(world, world->size()), pool);
    pool.seal();
    init_model(*model, 11);
    PretrainSettings settings;
    settings.lm = {.micro_batch = setup.micro_batch,
                   .seed = 17,
                   .checkpointing = setup.checkpointing,
                   .trainer = {.lr = 1e-2}};
    settings.documents = setup.documents;
    settings.batch = {.global = kGlobalBatch};
    settings.schedule = Schedule{.kind = ScheduleKind::kMegatronCosine,
                                 .warmup = 2 * kGlobalBatch,
                                 .total = 6 * kGlobalBatch,
                                 .min_lr = 1e-3};
    pretrain = std::make_unique<Pretrain>(*model, settings, std::move(train));
  }
};

struct Trajectory {
  std::vector<double> losses, norms, rates;
  double validation = 0;
};

Trajectory trajectory(const How& setup, int steps, std::shared_ptr<const BlendedDataset> train,
                      std::shared_ptr<const BlendedDataset> valid) {
  Trajectory result;
  on_ranks(setup.world, [&](std::shared_ptr<Communicator> world) {
    Rank rank(setup, world, train);
    Trajectory mine;
    for (int step = 0; step < steps; ++step) {
      const PretrainRecord record = rank.pretrain->step(step);
      mine.losses.push_back(record.lm.loss);
      mine.norms.push_back(record.lm.update.grad_norm);
      mine.rates.push_back(record.lm.update.lr);
    }
    mine.validation = rank.pretrain->evaluate(*valid, 5);
    if (world->rank() == 0) {
      result = mine;
    }
  });
  return result;
}

void expect_near(const Trajectory& actual, const Trajectory& expected, double bound) {
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], bound * expected.losses[i]) << "step " << i;
    EXPECT_NEAR(actual.norms[i], expected.norms[i], 10 * bound * expected.norms[i]) << "step " << i;
  }
  EXPECT_EQ(actual.rates, expected.rates);
  EXPECT_NEAR(actual.validation, expected.validation, bound * expected.validation);
}

TEST_F(PretrainRun, NoNumberDependsOnRanksStageOrMicroBatchWithDropoutOn) {
  for (const std::string type : {"gpt2", "bloom", "opt"}) {
    SCOPED_TRACE(type);
    const Trajectory one = trajectory({type}, 4, train_, valid_);
    for (const How& setup : {How{type, 1, 0, 6}, How{type, 2, 3, 1}, How{type, 3, 0, 2},
                             How{type, 4, 3, 2}, How{type, 4, 0, 1}}) {
      SCOPED_TRACE(str(setup.world, " ranks, stage ", setup.zero_stage));
      expect_near(trajectory(setup, 4, train_, valid_), one, 1e-5);
    }
  }
}

TEST_F(PretrainRun, RecomputingBlocksChangesNoBitWithDropoutOn) {
  const Trajectory kept = trajectory({}, 3, train_, valid_);
  for (const Checkpointing& mode : {Checkpointing::kFull, Checkpointing{2}, Checkpointing{1, 1}}) {
    const Trajectory recomputed = trajectory({.checkpointing = mode}, 3, train_, valid_);
    EXPECT_EQ(recomputed.losses, kept.losses);
    EXPECT_EQ(recomputed.norms, kept.norms);
  }
}

TEST_F(PretrainRun, DropoutActsInTrainingAndNotInEvaluation) {
  ModelSpec spec = spec_of("gpt2");
  EXPECT_EQ(spec.hidden_dropout, 0.1);
  on_ranks(1, [&](std::shared_ptr<Communicator> world) {
    Rank rank({}, world, train_);
    const double before = rank.pretrain->evaluate(*valid_, 4);
    EXPECT_EQ(rank.pretrain->evaluate(*valid_, 4), before);
    // The rate of the first step is 0: the same weights, other masks, other losses.
    const double first = rank.pretrain->step(0).lm.loss;
    rank.pretrain->set_position({});
    const double second = rank.pretrain->step(1).lm.loss;
    EXPECT_NE(first, second);
  });
}

TEST_F(PretrainRun, AResumedRunIsTheSameRunBitForBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    const How setup{.world = 2, .zero_stage = 3, .dtype = dtype};
    on_ranks(2, [&](std::shared_ptr<Communicator> world) {
      const std::string out = folder_ / c10::toString(dtype);
      Rank whole(setup, world, train_);
      std::vector<double> losses;
      std::string saved;
      for (int step = 0; step < 6; ++step) {
        losses.push_back(whole.pretrain->step(step).lm.loss);
        if (step == 2) {
          saved = save_run(
              {world.get(), 3, {{"model", &whole.model->store, &whole.pretrain->trainer()}}},
              {{"consumed", whole.pretrain->position().consumed},
               {"scheduled", whole.pretrain->position().scheduled}},
              out);
        }
      }
      Rank resumed(setup, world, train_);
      RunState state{
          world.get(), 0, {{"model", &resumed.model->store, &resumed.pretrain->trainer()}}};
      const nlohmann::json extra = load_run(state, saved);
      resumed.pretrain->set_position({extra.at("consumed"), extra.at("scheduled")});
      for (int step = 3; step < 6; ++step) {
        EXPECT_EQ(resumed.pretrain->step(step).lm.loss, losses[step]);
      }
    });
  }
}

TEST_F(PretrainRun, TheModelLearns) {
  const Trajectory run = trajectory({.world = 2, .zero_stage = 3}, 12, train_, valid_);
  EXPECT_LT(run.losses.back(), run.losses.front() - 0.2);
}

TEST(LmSequence, AnEndOfDocumentTokenActsAsAskedFor) {
  const std::vector<int64_t> sample = {4, 0, 5, 6, 0, 7};  // 0 ends a document
  const LmSequence plain = lm_sequence(sample, 9, {});
  EXPECT_THAT(plain.tokens, ElementsAre(4, 0, 5, 6, 0));
  EXPECT_THAT(plain.targets, ElementsAre(0, 5, 6, 0, 7));
  EXPECT_THAT(plain.lengths, ElementsAre(5));
  EXPECT_THAT(plain.positions, ElementsAre());
  EXPECT_THAT(lm_sequence(sample, 9, {0, true}).targets, ElementsAre(0, -1, 6, 0, -1));
  const LmSequence positions = lm_sequence(sample, 9, {0, false, true, false});
  EXPECT_THAT(positions.lengths, ElementsAre(5));
  EXPECT_THAT(positions.positions, ElementsAre(0, 1, 0, 1, 2));
  const LmSequence masked = lm_sequence(sample, 9, {0, false, false, true});
  EXPECT_THAT(masked.lengths, ElementsAre(2, 3));
  EXPECT_THAT(masked.positions, ElementsAre(0, 1, 2, 3, 4));
  const LmSequence both = lm_sequence(sample, 9, {0, false, true, true});
  EXPECT_THAT(both.lengths, ElementsAre(2, 3));
  EXPECT_THAT(both.positions, ElementsAre());
}

TEST_F(PretrainRun, DocumentsKeptApartAreTheirOwnSequences) {
  // With both resets a sample's loss is that of its documents, each by itself.
  on_ranks(1, [&](std::shared_ptr<Communicator> world) {
    Rank rank({}, world, train_);
    const auto loss = [&](const std::vector<int64_t>& sample, const DocumentRules& rules) {
      const LmSequence sequence = lm_sequence(sample, 0, rules);
      const LmBatch batch =
          LmBatch::of(std::span(&sequence, 1), rank.model->decoder.spec(), std::nullopt);
      return rank.model->decoder
          .logprobs(rank.model->store, batch.tokens, batch.targets, Phase::kForward, false)
          .logp.sum()
          .item<double>();
    };
    const double apart = loss({4, 9, 0, 5, 6, 7}, {0, false, true, true});
    EXPECT_NEAR(apart, loss({4, 9, 0, 5}, {}) + loss({5, 6, 7}, {}), 1e-5);
    EXPECT_NE(apart, loss({4, 9, 0, 5, 6, 7}, {}));
  });
}

TEST(BatchPlan, GrowsByItsIncrementOverItsSamples) {
  const BatchPlan plan{.global = 8, .start = 2, .increment = 2, .samples = 12};
  EXPECT_EQ(plan.at(0), 2);
  EXPECT_EQ(plan.at(3), 2);
  EXPECT_EQ(plan.at(4), 4);
  EXPECT_EQ(plan.at(8), 6);
  EXPECT_EQ(plan.at(12), 8);
  // 2 2 4 6 8 8 ...
  EXPECT_EQ(plan.samples_for(4), 14);
  EXPECT_EQ(plan.samples_for(6), 30);
  EXPECT_EQ(plan.steps_for(30), 6);
  EXPECT_EQ(plan.steps_for(29), 5);
  EXPECT_EQ(plan.steps_for(1), 0);
  EXPECT_EQ((BatchPlan{.global = 4}.steps_for(11)), 2);
}

TEST(Flops, OfATrainingStepAreThoseOfTheFormula) {
  // 24 L h^2 (1 + s / 6h) a token and layer, 2 h V for the logits; all three times.
  const ModelSpec spec = spec_of("gpt2");
  const double h = 24, s = 16, layers = 3;
  const double forward = s * (24 * layers * h * h * (1 + s / (6 * h)) + 2 * h * kVocab);
  EXPECT_DOUBLE_EQ(forward_flops(spec, 16), forward);
  EXPECT_DOUBLE_EQ(training_flops(spec, 16, {}), 3 * forward);
  EXPECT_DOUBLE_EQ(training_flops(spec, 16, Checkpointing::kFull),
                   4 * forward - s * 2 * h * kVocab);
}

}  // namespace
}  // namespace reknit
