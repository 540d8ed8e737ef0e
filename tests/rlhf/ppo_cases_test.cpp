// PPO in the situations that other systems' users reported, and at the edges of its input.
#include "reknit/models/groups.h"
#include "tests/support/ppo_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

namespace reknit {
namespace {

using namespace testing_support;
using testing::HasSubstr;

struct Outcome {
  std::vector<PpoRecord> records;           ///< rank 0's
  std::map<uint64_t, Experience> answered;  ///< of all steps, by global sequence number
  std::vector<at::Tensor> actor;
};

Outcome run(const std::string& model, int world, const RankModelSettings& placement,
            const PpoSettings& settings, const std::vector<std::vector<int64_t>>& prompts,
            int steps, const ScoreFunction& score = {}) {
  Outcome outcome;
  std::mutex mutex;
  const auto folder = golden_folder("models") / model;
  on_ranks(world, [&](std::shared_ptr<Communicator> comm) {
    PpoWorld ppo_world(folder, comm, placement);
    PpoModels models = ppo_world.models();
    if (score) {
      models.reward = nullptr;
    }
    Ppo ppo(models, settings, prompts, score);
    for (int step = 0; step < steps; ++step) {
      const PpoRecord record = ppo.step(step);
      std::lock_guard lock(mutex);
      if (comm->rank() == 0) {
        outcome.records.push_back(record);
      }
      for (const Experience& e : ppo.last_experiences()) {
        outcome.answered[e.sequence] = e;
      }
    }
    const auto weights = all_weights(ppo_world.actor->store);
    if (comm->rank() == 0) {
      outcome.actor = weights;
    }
  });
  return outcome;
}

std::map<uint64_t, std::vector<int64_t>> tokens_of(const Outcome& outcome) {
  std::map<uint64_t, std::vector<int64_t>> tokens;
  for (const auto& [sequence, experience] : outcome.answered) {
    tokens[sequence] = experience.tokens;
  }
  return tokens;
}

std::vector<std::vector<int64_t>> prompts_of_length(int64_t length, int count) {
  std::vector<std::vector<int64_t>> prompts(count);
  for (int i = 0; i < count; ++i) {
    for (int64_t t = 0; t < length; ++t) {
      prompts[i].push_back(4 + (i * 31 + t * 17) % 70);
    }
  }
  return prompts;
}

// A model with an embedding width of its own and post-layernorm; prompt 16, answer 16.
TEST(PpoCases, GreedyAnswersOfOpt350mEqualThoseOfStage0WithoutPinningOnAllRankCounts) {
  PpoSettings settings = tiny_ppo();
  settings.sampling = {.max_new_tokens = 16, .temperature = 0.0, .eos = 2};
  settings.global_batch = 4;
  const auto prompts = prompts_of_length(16, 12);
  PpoSettings plain = settings;
  plain.hybrid.mode = GatherMode::kLayerwise;
  const Outcome expected = run("opt-350m", 1, {.zero_stage = 0}, plain, prompts, 3);
  ASSERT_EQ(expected.answered.size(), 12u);
  for (const int world : {1, 2, 3, 4}) {
    for (const int64_t threshold : {10'000, 100, 0}) {
      const Outcome outcome =
          run("opt-350m", world, {.persistence_threshold = threshold}, settings, prompts, 3);
      EXPECT_EQ(tokens_of(outcome), tokens_of(expected))
          << world << " ranks, persistence threshold " << threshold;
    }
  }
}

// The critic's head is zero, actor and reference are equal: only the score speaks.
void expect_score_rule(PpoRules rules, double score, double worth) {
  const auto folder = golden_folder("models") / "opt-125m";
  PpoSettings settings = tiny_ppo();
  settings.rules = rules;
  settings.actor.lr = 0;
  settings.critic.lr = 0;
  settings.sampling.max_new_tokens = 3;
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    for (const int64_t eos : {int64_t{-1}, int64_t{0}}) {
      PpoWorld world(folder, comm, {});
      const ModelSpec& spec = world.critic->decoder.spec();
      world.critic->store.write(head_group(spec), HeadParams::of(spec).value, 0,
                                at::zeros({spec.embed_dim}));
      PpoModels models = world.models();
      models.reward = nullptr;
      PpoSettings mine = settings;
      mine.sampling.eos = eos;
      if (eos == 0) {  // whatever the first answer's last token is
        Ppo first(models, settings, {{7, 8, 9}},
                  [](std::span<const Experience> all) { return std::vector(all.size(), 0.0); });
        first.step(0);
        at::Tensor token = at::zeros({1}, at::TensorOptions(at::kLong).device(test_device()));
        if (!first.last_experiences().empty()) {
          token.fill_(first.last_experiences()[0].tokens.back());
        }
        const Stream& stream = this_rank().compute;
        mine.sampling.eos =
            comm->all_reduce({token}, ReduceOp::kMax, stream).wait_on_host()[0].item<int64_t>();
      }
      Ppo ppo(models, mine, {{7, 8, 9}},
              [&](std::span<const Experience> all) { return std::vector(all.size(), score); });
      ppo.step(0);
      for (const Experience& e : ppo.last_experiences()) {
        const size_t n = e.answer_length();
        const bool masked_end = rules == PpoRules::kDeepSpeedChat && e.ended;
        EXPECT_EQ(e.mask.back(), masked_end || e.unmasked() == 0 ? 0 : 1);
        for (size_t t = 0; t < n; ++t) {
          EXPECT_NEAR(e.advantages[t], worth * std::pow(0.95, n - 1 - t), fp32_bound(1e-5));
        }
      }
    }
  });
}

TEST(PpoCases, TheScoreIsWorthItselfAtTheLastEntryUnderBothRules) {
  expect_score_rule(PpoRules::kStrict, 2.0, 2.0);
  expect_score_rule(PpoRules::kDeepSpeedChat, 2.0, 2.0);
}

TEST(PpoCases, WithoutPaddingAScoreOf7CountsAs5) {
  expect_score_rule(PpoRules::kStrict, 7.0, 5.0);
  expect_score_rule(PpoRules::kDeepSpeedChat, 7.0, 5.0);
}

TEST(PpoCases, EmptyAnswersWeighNothingAndChangeNoWeight) {
  PpoSettings settings = tiny_ppo();
  settings.sampling.max_new_tokens = 0;
  for (const PpoRules rules : {PpoRules::kStrict, PpoRules::kDeepSpeedChat}) {
    settings.rules = rules;
    const Outcome outcome = run("opt-350m", 2, {}, settings, tiny_prompts(), 1);
    EXPECT_EQ(outcome.records[0].tokens, 0);
    EXPECT_EQ(outcome.records[0].actor_loss, 0.0);
    EXPECT_EQ(outcome.records[0].critic_loss, 0.0);
    EXPECT_EQ(outcome.records[0].answer_length, 0.0);
    PpoSettings frozen = settings;
    frozen.actor.lr = 0;
    const Outcome still = run("opt-350m", 2, {}, frozen, tiny_prompts(), 1);
    for (size_t i = 0; i < still.actor.size(); ++i) {
      EXPECT_TRUE(at::equal(outcome.actor[i], still.actor[i]));
    }
  }
}

// Every token ends an answer: all are dropped, on all ranks.
TEST(PpoCases, WhenDeepSpeedChatsRulesDropEveryAnswerNothingIsLearnt) {
  PpoSettings settings = tiny_ppo();
  settings.rules = PpoRules::kDeepSpeedChat;
  settings.sampling.max_new_tokens = 1;
  const Outcome outcome = run("bloom-4-heads", 2, {}, settings, tiny_prompts(), 2);
  EXPECT_EQ(outcome.records[1].tokens, 0);
  EXPECT_EQ(outcome.records[1].actor_loss, 0.0);
  EXPECT_EQ(outcome.records[1].reward, 0.0);
  EXPECT_EQ(outcome.records[1].actor.grad_norm, 0.0);
}

// Of two ranks one has answers of one token only: the mean is the other rank's.
TEST(PpoCases, ARankWhoseAnswersAreAllDroppedDoesNotShrinkTheOthersMean) {
  PpoSettings settings = tiny_ppo();
  settings.rules = PpoRules::kDeepSpeedChat;
  settings.global_batch = 2;
  settings.sampling.eos = -1;
  const auto prompts = tiny_prompts();
  const auto score = [](std::span<const Experience> all) { return std::vector(all.size(), 1.5); };
  // An end token that is the first of answer 0 and does not occur in answer 1.
  int64_t eos = -1;
  for (settings.sampling.seed = 0; eos < 0; ++settings.sampling.seed) {
    ASSERT_LT(settings.sampling.seed, 20u);
    const Outcome free = run("opt-125m", 2, {}, settings, prompts, 1, score);
    const Experience& a = free.answered.at(0);
    const Experience& b = free.answered.at(1);
    const int64_t first = a.tokens[a.prompt_length];
    if (std::count(b.tokens.begin() + b.prompt_length, b.tokens.end(), first) == 0) {
      eos = first;
      break;
    }
  }
  settings.sampling.eos = eos;
  const Outcome outcome = run("opt-125m", 2, {}, settings, prompts, 1, score);
  ASSERT_EQ(outcome.answered.at(0).unmasked(), 0);
  double expected = 0;
  const Experience& kept = outcome.answered.at(1);
  for (const double advantage : kept.advantages) {
    expected -= advantage;
  }
  expected /= static_cast<double>(kept.unmasked());
  EXPECT_NEAR(outcome.records[0].actor_loss, expected, fp32_bound(1e-5));
  EXPECT_NEAR(outcome.records[0].reward, 1.5, 1e-12);
}

TEST(PpoCases, FewerPromptsThanRanksGiveTheNumbersOfOneRank) {
  for (const int64_t batch : {1, 2}) {
    PpoSettings settings = tiny_ppo();
    settings.global_batch = batch;
    const std::vector<std::vector<int64_t>> prompts{{5, 6, 7}};
    const Outcome expected = run("opt-350m", 1, {.zero_stage = 0}, settings, prompts, 2);
    for (const int world : {3, 5}) {
      const Outcome outcome = run("opt-350m", world, {}, settings, prompts, 2);
      EXPECT_EQ(tokens_of(outcome), tokens_of(expected));
      EXPECT_NEAR(outcome.records[1].actor_loss, expected.records[1].actor_loss, fp32_bound(1e-5));
      EXPECT_NEAR(outcome.records[1].critic_loss, expected.records[1].critic_loss,
                  fp32_bound(1e-5));
    }
  }
}

TEST(PpoCases, ABatchLargerThanTheDataTakesEveryPromptOnceAStep) {
  PpoSettings settings = tiny_ppo();
  settings.global_batch = 8;
  const std::vector<std::vector<int64_t>> prompts{{5, 6}, {7, 8, 9}, {10}};
  const Outcome expected = run("bloom-4-heads", 1, {}, settings, prompts, 2);
  for (const int world : {2, 3}) {
    const Outcome outcome = run("bloom-4-heads", world, {}, settings, prompts, 2);
    EXPECT_EQ(tokens_of(outcome), tokens_of(expected));
  }
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    std::set<int64_t> first_tokens;
    for (uint64_t i = 0; i < 3; ++i) {
      first_tokens.insert(expected.answered.at(3 * epoch + i).tokens[0]);
    }
    EXPECT_EQ(first_tokens, (std::set<int64_t>{5, 7, 10})) << "epoch " << epoch;
  }
}

TEST(PpoCases, AnUnusablePromptIsRefusedBeforeTheFirstStepOnAllRanks) {
  PpoSettings settings = tiny_ppo();
  settings.sampling.max_new_tokens = 20;
  auto prompts = tiny_prompts();
  prompts[7].assign(13, 5);
  try {
    run("opt-125m", 2, {}, settings, prompts, 0);
    FAIL() << "a prompt without positions for its answer was accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("prompt 7"));
    EXPECT_THAT(error.what(), HasSubstr("32 positions"));
  }
  prompts[7].clear();
  EXPECT_THROW(run("opt-125m", 2, {}, settings, prompts, 0), InputError);
  EXPECT_THROW(run("opt-125m", 2, {}, settings, {}, 0), InputError);
}

TEST(PpoCases, TheRewardsMovingAverageKeepsNineTenths) {
  const Outcome outcome = run("opt-125m", 2, {}, tiny_ppo(), tiny_prompts(), 3);
  double expected = outcome.records[0].reward;
  for (const PpoRecord& record : outcome.records) {
    expected = 0.9 * expected + 0.1 * record.reward;
    EXPECT_NEAR(record.reward_ema, expected, 1e-12);
  }
}

}  // namespace
}  // namespace reknit
