// The moving average of weights: its formula, and a folder written from it.
#include "reknit/rlhf/weight_average.h"

#include "tests/checkpoint/checkpoint_support.h"
#include "tests/support/ppo_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <mutex>

namespace reknit {
namespace {

using namespace testing_support;

// The average of every parameter follows from the weights after each step.
TEST(WeightAverage, TheExportedFolderHoldsTheRecurrenceAndTheWeightsStay) {
  const auto folder = golden_folder("models") / "opt-350m";
  for (const int stage : {0, 1, 3}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const TempFolder temp;
      on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
        PpoWorld world(folder, comm, {.zero_stage = stage, .dtype = dtype});
        PpoSettings settings = tiny_ppo();
        settings.ema_beta = 0.75;
        Ppo ppo(world.models(), settings, tiny_prompts());
        Store& store = world.actor->store;
        std::vector<at::Tensor> expected;
        for (const OptimizerShard& shard : store.shards()) {
          expected.push_back(shard.master.clone());
        }
        for (int step = 0; step < 3; ++step) {
          ppo.step(step);
          const auto shards = store.shards();
          for (size_t i = 0; i < shards.size(); ++i) {
            expected[i] = 0.75 * expected[i] + 0.25 * shards[i].master;
          }
        }
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(at::allclose(ppo.actor_average()->shards()[i], expected[i], 1e-6, 1e-7));
        }
        const auto before = all_weights(store);
        ppo.actor_average()->write_model(*world.actor, world.folder, dtype, temp / "actor_ema",
                                         IfPresent::kRefuse);
        const auto after = all_weights(store);
        for (size_t i = 0; i < before.size(); ++i) {
          EXPECT_TRUE(at::equal(before[i], after[i]));
        }
        // Read back under the same placement, the masters are the averages.
        RankModel read(temp / "actor_ema", comm, {.zero_stage = stage, .dtype = dtype});
        const auto shards = read.model->store.shards();
        for (size_t i = 0; i < shards.size(); ++i) {
          EXPECT_TRUE(at::equal(shards[i].weight, expected[i].to(dtype)) ||
                      at::allclose(shards[i].weight.to(at::kFloat), expected[i],
                                   dtype == at::kFloat ? 1e-6 : 1e-2, 1e-6));
        }
        EXPECT_FALSE(at::equal(before[0], all_weights(read.model->store)[0]));
        ppo.step(3);  // and the run goes on
      });
    }
  }
}

// Rank 0 alone writes, and nothing but the call itself frees the others.
TEST(WeightAverage, AFolderThatCannotBeWrittenEndsAllRanksWithItsSentence) {
  const auto folder = golden_folder("models") / "opt-125m";
  const TempFolder temp;
  spit(temp / "taken", "a file");
  for (const bool average : {true, false}) {
    std::mutex mutex;
    std::vector<std::string> said;
    std::barrier ready(3);  // not a collective: the first error would end it too
    on_ranks(3, [&](std::shared_ptr<Communicator> comm) {
      RankModel rank(folder, comm, {});
      WeightAverage moving(rank.model->store, 0.5);
      ready.arrive_and_wait();
      const std::string sentence = sentence_of<Error>([&] {
        if (average) {
          moving.write_model(*rank.model, rank.folder, at::kFloat, temp / "taken",
                             IfPresent::kReplace);
        } else {
          export_model(*rank.model, rank.folder, at::kFloat, temp / "taken", IfPresent::kReplace);
        }
      });
      const std::lock_guard lock(mutex);
      said.push_back(sentence);
    });
    EXPECT_THAT(said, testing::SizeIs(3));
    EXPECT_THAT(said, testing::Each(testing::HasSubstr("a file has that name")));
  }
}

TEST(WeightAverage, NoneIsKeptUnlessAskedForAndImpossibleDecaysAreRefused) {
  const auto folder = golden_folder("models") / "opt-125m";
  on_ranks(1, [&](std::shared_ptr<Communicator> comm) {
    PpoWorld world(folder, comm, {});
    Ppo ppo(world.models(), tiny_ppo(), tiny_prompts());
    EXPECT_EQ(ppo.actor_average(), nullptr);
    PpoWorld other(folder, comm, {});
    PpoSettings settings = tiny_ppo();
    settings.ema_beta = 0.0;
    Ppo forgetful(other.models(), settings, tiny_prompts());
    EXPECT_NE(forgetful.actor_average(), nullptr);
    EXPECT_THROW(WeightAverage(world.actor->store, 1.0), UsageError);
    EXPECT_THROW(WeightAverage(world.actor->store, -0.1), UsageError);
  });
}

}  // namespace
}  // namespace reknit
