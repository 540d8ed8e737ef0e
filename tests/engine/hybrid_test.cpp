// One set of weights in both phases: what generation reads is what training wrote.
#include "reknit/engine/hybrid.h"

#include "reknit/engine/trainer.h"
#include "tests/support/rank_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

namespace reknit {
namespace {

using namespace testing_support;

const std::vector<std::vector<int64_t>> kPrompts{
    {5, 11}, {7, 3, 60, 21, 9}, {4, 8, 15, 16, 23, 42, 10, 70, 33}};

std::vector<GenerationRequest> all_requests() {
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    requests.push_back({kPrompts[i], i});
  }
  return requests;
}

// Raises the probability of `target` behind every token: same on all ranks.
void train_step(Model& model, Trainer& trainer, int64_t target) {
  std::vector<int64_t> tokens;
  std::vector<int64_t> lengths;
  for (const auto& prompt : kPrompts) {
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
    lengths.push_back(static_cast<int64_t>(prompt.size()));
  }
  const auto count = static_cast<int64_t>(tokens.size());
  const auto batch = TokenBatch::of(tokens, lengths, model.decoder.spec(), test_device());
  const auto options = at::TensorOptions(test_device());
  std::shared_ptr<Saved> saved;
  (void)model.decoder.logprobs(model.store, batch,
                               at::full({count}, target, options.dtype(at::kLong)), Phase::kForward,
                               false, &saved);
  model.decoder.logprobs_backward(model.store, std::move(saved),
                                  at::full({count}, -0.1f, options.dtype(at::kFloat)));
  trainer.step();
}

// Log-probability of `answers[i]`'s first token by a training forward.
std::vector<float> first_logp(Model& model, const std::vector<Generation>& answers) {
  std::vector<float> result;
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    std::vector<int64_t> targets(kPrompts[i].size(), -1);
    targets.back() = answers[i].tokens[0];
    const auto batch = TokenBatch::of(kPrompts[i], {static_cast<int64_t>(kPrompts[i].size())},
                                      model.decoder.spec(), test_device());
    const auto scored =
        model.decoder.logprobs(model.store, batch, at::tensor(targets, at::kLong).to(test_device()),
                               Phase::kForward, false);
    model.store.finish_pass();
    result.push_back(scored.logp[-1].item<float>());
  }
  return result;
}

using Phases = std::vector<std::vector<std::vector<int64_t>>>;

// 12 greedy tokens, a step, 12 greedy tokens.
Phases generate_train_generate(int world, const RankModelSettings& placement, GatherMode mode) {
  Phases phases;
  std::mutex mutex;
  on_ranks(world, [&](std::shared_ptr<Communicator> comm) {
    RankModel rank(golden_folder("models") / "bloom-4-heads", comm, placement);
    Hybrid hybrid(rank.model->decoder, rank.model->store, {.mode = mode});
    Trainer trainer(rank.model->store, {.lr = 1e-2, .schedule = {}, .optimizer = {}, .scaler = {}});
    Phases mine;
    for (int phase = 0; phase < 2; ++phase) {
      auto& answers = mine.emplace_back();
      {
        GenerateLease lease = hybrid.enter_generation();
        for (const Generation& answer : lease.generate(all_requests(), 3, {.max_new_tokens = 12})) {
          answers.push_back(answer.tokens);
        }
      }
      train_step(*rank.model, trainer, 17);
    }
    std::lock_guard lock(mutex);
    if (phases.empty()) {
      phases = mine;
    }
    EXPECT_EQ(phases, mine) << "rank " << comm->rank() << " generates other tokens";
  });
  return phases;
}

TEST(Hybrid, BloomGeneratesTheSamePinnedAndLayerwiseBeforeAndAfterAStep) {
  const Phases expected = generate_train_generate(1, {.zero_stage = 0}, GatherMode::kLayerwise);
  EXPECT_NE(expected[0], expected[1]);
  for (const int world : {2, 3}) {
    for (const GatherMode mode : {GatherMode::kPinned, GatherMode::kLayerwise}) {
      EXPECT_EQ(generate_train_generate(world, {}, mode), expected) << world << " ranks";
    }
  }
}

TEST(Hybrid, GenerationLeavesTheShardsAloneSpeaksLikeTheForwardAndFollowsTheStep) {
  for (const std::string name : {"opt-125m", "opt-350m", "bloom-4-heads"}) {
    for (const GatherMode mode : {GatherMode::kPinned, GatherMode::kLayerwise}) {
      on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
        SCOPED_TRACE(name);
        RankModel rank(golden_folder("models") / name, comm, {});
        Store& store = rank.model->store;
        Hybrid hybrid(rank.model->decoder, store, {.mode = mode});
        Trainer trainer(store, {.lr = 1e-2, .schedule = {}, .optimizer = {}, .scaler = {}});
        const auto shards_now = [&] {
          std::vector<at::Tensor> copies;
          for (const OptimizerShard& shard : store.shards()) {
            copies.push_back(shard.weight.clone());
          }
          return copies;
        };
        std::vector<float> earlier;
        for (int phase = 0; phase < 2; ++phase) {
          const auto before = shards_now();
          std::vector<Generation> answers;
          {
            GenerateLease lease = hybrid.enter_generation();
            answers = lease.generate(all_requests(), 2, {.max_new_tokens = 5});
            const auto during = shards_now();
            for (size_t i = 0; i < before.size(); ++i) {
              EXPECT_TRUE(at::equal(before[i], during[i]));
            }
          }
          const auto spoken = first_logp(*rank.model, answers);
          const auto after = shards_now();
          for (size_t i = 0; i < before.size(); ++i) {
            EXPECT_TRUE(at::equal(before[i], after[i]));
          }
          for (size_t i = 0; i < answers.size(); ++i) {
            EXPECT_NEAR(answers[i].logprobs[0], spoken[i], fp32_bound(1e-5));
            if (phase == 1) {
              EXPECT_GT(std::abs(spoken[i] - earlier[i]), 1e-3) << "the step did not arrive";
            }
          }
          earlier = spoken;
          train_step(*rank.model, trainer, 17);
        }
      });
    }
  }
}

TEST(Hybrid, TheWeightsAreReadOnlyDuringGenerationHoweverTheyAreGathered) {
  for (const GatherMode mode : {GatherMode::kPinned, GatherMode::kLayerwise}) {
    on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      RankModel rank(golden_folder("models") / "opt-125m", comm, {});
      Store& store = rank.model->store;
      Hybrid hybrid(rank.model->decoder, store, {.mode = mode});
      TrainerSettings settings;
      settings.lr = 1e-2;
      Trainer trainer(store, settings);
      std::vector<at::Tensor> masters;
      for (const OptimizerShard& shard : store.shards()) {
        masters.push_back(shard.master.clone());
      }
      {
        GenerateLease lease = hybrid.enter_generation();
        const auto expect_refused = [&](const std::function<void()>& change) {
          try {
            change();
            ADD_FAILURE() << "the weights were changed";
          } catch (const StateError& error) {
            EXPECT_THAT(error.what(), testing::HasSubstr("during generation"));
          }
        };
        expect_refused([&] { store.begin_update(); });
        expect_refused([&] { store.swap_masters(masters); });
        expect_refused([&] { store.write(0, 0, 0, at::zeros({1})); });
        expect_refused([&] { store.edit(0, 0, 0); });
        EXPECT_THROW((void)hybrid.enter_generation(), StateError);
      }
      train_step(*rank.model, trainer, 17);
      GenerateLease again = hybrid.enter_generation();
    });
  }
}

}  // namespace
}  // namespace reknit
