// The four models of PPO from one golden case, on thread ranks.
#pragma once

#include "reknit/rlhf/ppo.h"
#include "tests/support/rank_model.h"

namespace reknit::testing_support {

/// Actor, critic, reference and reward of one rank, one pool between them.
struct PpoWorld {
  HfFolder folder;
  SlotPool pool;
  std::unique_ptr<Model> actor, critic, reference, reward;

  /// `actor_world`: what the actor's store talks through, if not `world`.
  PpoWorld(const std::filesystem::path& path, std::shared_ptr<Communicator> world,
           const RankModelSettings& settings, std::shared_ptr<Communicator> actor_world = nullptr)
      : folder(path.string()), pool(rank_memory) {
    actor = make("actor", actor_world ? actor_world : world, settings, true, false);
    critic = make("critic", world, settings, true, true);
    reference = make("reference", world, settings, false, false);
    reward = make("reward", world, settings, false, true);
    pool.seal();
    load_model(*actor, folder, ValueHead::kNone, 0);
    load_model(*critic, folder, ValueHead::kNewIfAbsent, 17);
    load_model(*reference, folder, ValueHead::kNone, 0);
    load_model(*reward, folder, ValueHead::kNewIfAbsent, 18);
  }

  PpoModels models() { return {actor.get(), critic.get(), reference.get(), reward.get()}; }

 private:
  std::unique_ptr<Model> make(const char* name, const std::shared_ptr<Communicator>& world,
                              const RankModelSettings& settings, bool training, bool value_head) {
    ModelSpec spec = ModelSpec::from_hf(folder.config());
    spec.value_head = value_head;
    const int shard_size = settings.shard_size == 0 ? world->size() : settings.shard_size;
    return make_model(spec,
                      {.name = name,
                       .dtype = settings.dtype,
                       .placement = {settings.zero_stage, shard_size},
                       .persistence_threshold = settings.persistence_threshold,
                       .training = training,
                       .allocator = {}},
                      StoreComms::over(world, shard_size), pool);
  }
};

/// Settings of a tiny run: 6 prompts a step, answers of 6 tokens.
inline PpoSettings tiny_ppo() {
  PpoSettings settings;
  settings.sampling = {.max_new_tokens = 6, .temperature = 1.0, .seed = 7, .eos = 2};
  settings.global_batch = 6;
  settings.micro_batch = 2;
  settings.generate_batch = 2;
  settings.actor = {.name = "actor",
                    .lr = 1e-3,
                    .schedule = {},
                    .optimizer = {.kind = AdamSettings{.beta2 = 0.95}},
                    .clip = 1.0,
                    .scaler = {}};
  settings.critic = {.name = "critic",
                     .lr = 1e-3,
                     .schedule = {},
                     .optimizer = {.kind = AdamSettings{.beta2 = 0.95}},
                     .clip = 1.0,
                     .scaler = {}};
  return settings;
}

inline std::vector<std::vector<int64_t>> tiny_prompts() {
  std::vector<std::vector<int64_t>> prompts;
  for (int64_t i = 0; i < 10; ++i) {
    std::vector<int64_t> prompt;
    for (int64_t t = 0; t < 3 + i % 4; ++t) {
      prompt.push_back(5 + (i * 13 + t * 7) % 60);
    }
    prompts.push_back(prompt);
  }
  return prompts;
}

}  // namespace reknit::testing_support
