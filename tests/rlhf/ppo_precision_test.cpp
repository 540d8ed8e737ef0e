// PPO in 16 bits: close to fp32, and an overflow that is planted is skipped by all ranks.
#include "reknit/comm/fault.h"
#include "tests/support/ppo_world.h"

#include <gtest/gtest.h>

#include <limits>
#include <mutex>

namespace reknit {
namespace {

using namespace testing_support;

PpoSettings half_ppo() {
  PpoSettings settings = tiny_ppo();
  for (TrainerSettings* trainer : {&settings.actor, &settings.critic}) {
    trainer->scaler.initial = 256;
    trainer->scaler.hysteresis = 1;
  }
  return settings;
}

std::vector<PpoRecord> records_of(const std::string& model, at::ScalarType dtype, int steps) {
  std::vector<PpoRecord> records;
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    PpoWorld world(golden_folder("models") / model, comm, {.dtype = dtype});
    Ppo ppo(world.models(), half_ppo(), tiny_prompts());
    for (int step = 0; step < steps; ++step) {
      const PpoRecord record = ppo.step(step);
      if (comm->rank() == 0) {
        records.push_back(record);
      }
    }
  });
  return records;
}

// Sampling may take another token where two are close, so the numbers are those of a
// slightly different batch.
TEST(PpoPrecision, SixteenBitRunsAreFiniteAndCloseToFp32) {
  for (const std::string model : {"opt-350m", "bloom-4-heads"}) {
    const auto expected = records_of(model, at::kFloat, 2);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const auto records = records_of(model, dtype, 2);
      for (size_t i = 0; i < records.size(); ++i) {
        SCOPED_TRACE(str(model, " ", c10::toString(dtype), " step ", i));
        const PpoRecord& r = records[i];
        EXPECT_TRUE(r.actor.applied);
        EXPECT_TRUE(r.critic.applied);
        for (const double value : {r.reward, r.kl, r.actor_loss, r.critic_loss, r.actor.grad_norm,
                                   r.critic.grad_norm, r.ratio_max, r.explained_variance}) {
          EXPECT_TRUE(std::isfinite(value));
        }
        EXPECT_NEAR(r.entropy, expected[i].entropy, 0.1);
        // On a GPU other tokens are drawn near a tie, and the answers part there.
        EXPECT_NEAR(r.kl, expected[i].kl, test_device().is_cuda() ? 0.1 : 0.02);
        EXPECT_NEAR(r.reward, expected[i].reward, 0.1);
      }
    }
  }
}

// Writes an inf into what rank 0's first reduce-scatter of the actor gives, in step 1.
void plant_overflow(bool align, std::vector<std::vector<PpoRecord>>& records) {
  records.assign(2, {});
  const auto folder = golden_folder("models") / "opt-350m";
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    bool armed = false;
    const FaultPlan plan = [&armed](CommKind kind, int64_t, int rank) {
      Fault fault;
      if (kind == CommKind::kReduceScatter && rank == 0 && armed) {
        armed = false;
        fault.corrupt = [](at::Tensor& written) {
          written.view(-1)[0].fill_(std::numeric_limits<float>::infinity());
        };
      }
      return fault;
    };
    std::shared_ptr<Communicator> actor_comm = make_fault(comm->split({0, 1}, "actor"), plan);
    PpoWorld world(folder, comm, {.dtype = at::kHalf}, actor_comm);
    PpoSettings settings = half_ppo();
    settings.align_overflow = align;
    settings.ema_beta = 0.5;
    Ppo ppo(world.models(), settings, tiny_prompts());
    for (int step = 0; step < 3; ++step) {
      armed = step == 1;
      const at::Tensor before = ppo.actor_average()->shards().at(0).clone();
      records[comm->rank()].push_back(ppo.step(step));
      EXPECT_EQ(at::equal(before, ppo.actor_average()->shards().at(0)), step == 1)
          << "the average follows an update that is made and no other: step " << step;
    }
  });
}

TEST(PpoPrecision, AnOverflowOnOneRankIsSkippedByAllAndTheRunGoesOn) {
  std::vector<std::vector<PpoRecord>> records;
  plant_overflow(false, records);
  for (const auto& rank : records) {
    EXPECT_TRUE(rank[0].actor.applied);
    EXPECT_FALSE(rank[1].actor.applied);
    EXPECT_TRUE(rank[1].critic.applied);
    EXPECT_EQ(rank[1].actor_skipped, 1);
    EXPECT_EQ(rank[1].critic_skipped, 0);
    EXPECT_TRUE(rank[2].actor.applied);
    EXPECT_EQ(rank[2].actor.loss_scale, rank[1].actor.loss_scale / 2);
    EXPECT_TRUE(std::isfinite(rank[2].actor_loss));
  }
  EXPECT_EQ(records[0][2].actor_loss, records[1][2].actor_loss);
}

TEST(PpoPrecision, AlignedModelsSkipTogetherAndOnlyTheOverflowingScalerMoves) {
  std::vector<std::vector<PpoRecord>> records;
  plant_overflow(true, records);
  for (const auto& rank : records) {
    EXPECT_FALSE(rank[1].actor.applied);
    EXPECT_FALSE(rank[1].critic.applied);
    EXPECT_EQ(rank[1].critic_skipped, 1);
    EXPECT_TRUE(rank[2].critic.applied);
    EXPECT_EQ(rank[2].critic.loss_scale, rank[0].critic.loss_scale);
    EXPECT_EQ(rank[2].actor.loss_scale, rank[0].actor.loss_scale / 2);
  }
}

}  // namespace
}  // namespace reknit
