// PPO on tiny models: no number depends on the number of ranks, updates reach generation.
#include "reknit/rlhf/ppo_report.h"
#include "tests/support/ppo_world.h"

#include <gtest/gtest.h>

namespace reknit {
namespace {

using namespace testing_support;

struct PpoRun {
  std::vector<PpoRecord> records;
  std::map<uint64_t, std::vector<int64_t>> tokens;  ///< by global sequence number
  std::vector<at::Tensor> actor, critic;
};

PpoRun run_ppo(const std::string& model, int world, RankModelSettings placement,
               const PpoSettings& settings, int steps = 3) {
  PpoRun run;
  std::mutex mutex;
  const auto folder = golden_folder("models") / model;
  on_ranks(world, [&](std::shared_ptr<Communicator> comm) {
    PpoWorld ppo_world(folder, comm, placement);
    Ppo ppo(ppo_world.models(), settings, tiny_prompts());
    for (int step = 0; step < steps; ++step) {
      const PpoRecord record = ppo.step(step);
      std::lock_guard lock(mutex);
      if (comm->rank() == 0) {
        run.records.push_back(record);
      }
      for (const Experience& experience : ppo.last_experiences()) {
        run.tokens[experience.sequence] = experience.tokens;
      }
    }
    auto actor = all_weights(ppo_world.actor->store);
    auto critic = all_weights(ppo_world.critic->store);
    if (comm->rank() == 0) {
      run.actor = std::move(actor);
      run.critic = std::move(critic);
    }
  });
  return run;
}

// The key biases of qkv have a gradient of zero in theory: rounding noise that Adam
// turns into steps of size lr. They are compared through what the model says.
bool is_qkv_bias(const at::Tensor& weight, int64_t hidden) {
  return weight.dim() == 1 && weight.numel() == 3 * hidden;
}

void expect_same_run(const PpoRun& run, const PpoRun& expected, int64_t hidden,
                     const std::string& what) {
  const double bound = fp32_bound(1e-4);
  EXPECT_EQ(run.tokens, expected.tokens) << what;
  for (size_t i = 0; i < expected.records.size(); ++i) {
    const PpoRecord& a = run.records[i];
    const PpoRecord& b = expected.records[i];
    EXPECT_NEAR(a.reward, b.reward, fp32_bound(1e-5)) << what;
    EXPECT_NEAR(a.kl, b.kl, fp32_bound(1e-5)) << what;
    EXPECT_NEAR(a.actor_loss, b.actor_loss, fp32_bound(1e-5)) << what;
    EXPECT_NEAR(a.critic_loss, b.critic_loss, fp32_bound(1e-5)) << what;
    EXPECT_NEAR(a.actor.grad_norm, b.actor.grad_norm, fp32_bound(1e-4)) << what;
    EXPECT_EQ(a.tokens, b.tokens);
  }
  for (size_t i = 0; i < expected.actor.size(); ++i) {
    if (!is_qkv_bias(expected.actor[i], hidden)) {
      EXPECT_TRUE(at::allclose(run.actor[i], expected.actor[i], bound, bound)) << what << " " << i;
    }
  }
  for (size_t i = 0; i < expected.critic.size(); ++i) {
    if (!is_qkv_bias(expected.critic[i], hidden)) {
      EXPECT_TRUE(at::allclose(run.critic[i], expected.critic[i], bound, bound))
          << what << " " << i;
    }
  }
}

TEST(Ppo, NoNumberDependsOnTheNumberOfRanks) {
  for (const std::string model : {"opt-350m", "bloom-4-heads", "opt-125m"}) {
    const PpoRun expected = run_ppo(model, 1, {.zero_stage = 0}, tiny_ppo());
    for (const int world : {1, 2, 3, 4, 5}) {
      const PpoRun run = run_ppo(model, world, {}, tiny_ppo());
      expect_same_run(run, expected, 32, str(model, " on ", world, " ranks"));
    }
  }
}

TEST(Ppo, RepeatedRunsAreBitEqual) {
  const PpoRun first = run_ppo("opt-350m", 4, {}, tiny_ppo());
  const PpoRun second = run_ppo("opt-350m", 4, {}, tiny_ppo());
  EXPECT_EQ(first.tokens, second.tokens);
  for (size_t i = 0; i < first.actor.size(); ++i) {
    EXPECT_TRUE(at::equal(first.actor[i], second.actor[i]));
  }
  EXPECT_EQ(first.records.back().actor_loss, second.records.back().actor_loss);
}

TEST(Ppo, LayerwiseGenerationPersistenceAndMinibatchesGiveTheSameNumbersOnAllRankCounts) {
  PpoSettings settings = tiny_ppo();
  settings.hybrid.mode = GatherMode::kLayerwise;
  settings.minibatch = 3;
  settings.ppo_epochs = 2;
  settings.actor_checkpointing = Checkpointing::kFull;
  settings.critic_checkpointing = Checkpointing::kFull;
  const PpoRun expected = run_ppo("opt-350m", 1, {.zero_stage = 0}, settings, 2);
  for (const int world : {2, 4}) {
    const PpoRun run = run_ppo("opt-350m", world, {.persistence_threshold = 100}, settings, 2);
    expect_same_run(run, expected, 32, str(world, " ranks"));
  }
}

TEST(Ppo, WithoutALearningRateTheRunDiffersFromTheSecondStepOn) {
  PpoSettings frozen = tiny_ppo();
  frozen.actor.lr = 0;
  frozen.critic.lr = 0;
  const PpoRun still = run_ppo("bloom-4-heads", 2, {}, frozen);
  const PpoRun moving = run_ppo("bloom-4-heads", 2, {}, tiny_ppo());
  EXPECT_EQ(still.records[0].reward, moving.records[0].reward);
  EXPECT_EQ(still.records[0].kl, 0.0);
  EXPECT_NEAR(still.records[1].kl, 0.0, 1e-7);
  EXPECT_NE(still.records[1].reward, moving.records[1].reward);
  EXPECT_NE(still.records[1].kl, moving.records[1].kl);
}

TEST(Ppo, AStepsRecordCountsWhatItMoved) {
  const PpoSettings settings = tiny_ppo();
  const PpoRun alone = run_ppo("gpt2", 1, {.zero_stage = 0}, settings, 1);
  const PpoRun sharded = run_ppo("gpt2", 2, {}, settings, 2);
  EXPECT_EQ(alone.records[0].comm.all_gather.count, 0);
  const CommCounts& comm = sharded.records[0].comm;
  EXPECT_GT(comm.all_gather.bytes, 0);
  EXPECT_GT(comm.reduce_scatter.bytes, 0);
  // Only this step's: answers of equal length make every step move the same.
  EXPECT_LT(sharded.records[1].comm.reduce_scatter.bytes, 2 * comm.reduce_scatter.bytes);
  const auto line = metrics_of(sharded.records[0], settings.global_batch);
  EXPECT_EQ(line.at("comm").at("all_gather").at("count"), comm.all_gather.count);
  EXPECT_EQ(line.at("comm").at("reduce_scatter").at("bytes"), comm.reduce_scatter.bytes);
  EXPECT_FALSE(line.at("comm").contains("all_to_all"));
}

}  // namespace
}  // namespace reknit
