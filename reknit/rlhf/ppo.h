// Proximal policy optimisation with four models, under any placement and rank count.
//
// Strict rules (default): losses are sums over the global batch divided by its unmasked
// tokens; the batch of a step is a function of (seed, step) alone and is split over the
// ranks in rank order; every random stream is keyed by the global sequence number. So no
// number depends on the number of ranks.
// DeepSpeed-Chat's rules: per-rank token means averaged over the ranks that have tokens,
// the end token is masked, answers of at most one token are dropped, the score is read
// before the end token, the reward is the mean over ranks of what was kept.
#pragma once

#include "reknit/engine/hybrid.h"
#include "reknit/engine/model.h"
#include "reknit/engine/trainer.h"
#include "reknit/rlhf/experience.h"
#include "reknit/rlhf/weight_average.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace reknit {

enum class PpoRules { kStrict, kDeepSpeedChat };

struct PpoSettings {
  PpoRules rules = PpoRules::kStrict;
  PpoConstants constants;
  SamplingSettings sampling;
  int64_t global_batch = 8;     ///< prompts of a step, over all ranks; at most all there are
  int64_t minibatch = 0;        ///< prompts of an update, over all ranks; 0: global_batch
  int64_t micro_batch = 8;      ///< sequences of one training forward on a rank
  int64_t generate_batch = 64;  ///< sequences generated at once on a rank
  int ppo_epochs = 1;
  uint64_t seed = 1234;  ///< of the prompt order and of sampling
  Checkpointing actor_checkpointing = Checkpointing::kNone;
  Checkpointing critic_checkpointing = Checkpointing::kNone;
  std::optional<double> ema_beta;  ///< of the actor's moving average, per update; none: none
  bool align_overflow = false;     ///< fp16: actor and critic skip an update together
  HybridSettings hybrid;
  TrainerSettings actor;
  TrainerSettings critic;
};

/// The four models; all share one pool per rank. They outlive the Ppo.
struct PpoModels {
  Model* actor;
  Model* critic;     ///< with a value head
  Model* reference;  ///< frozen
  Model* reward;     ///< frozen, with a value head; null if `score` is given

  std::vector<const Model*> all() const;
};

/// Scores whole answers in place of a reward model: called with this rank's experiences.
using ScoreFunction = std::function<std::vector<double>(std::span<const Experience>)>;

/// One step's numbers; the same on every rank except the seconds and `comm`, which are this
/// rank's.
struct PpoRecord {
  int64_t step = 0;  ///< from 1
  double reward = 0, reward_std = 0, kl = 0, actor_loss = 0, critic_loss = 0;
  double reward_ema = 0;  ///< moving average of `reward`, 0.9 of the old one
  double answer_length = 0, entropy = 0, clip_fraction = 0, value_clip_fraction = 0;
  double ratio_max = 0, explained_variance = 0, eos_fraction = 0;
  int64_t tokens = 0;  ///< unmasked answer tokens of the global batch
  double e2e_s = 0, gather_s = 0, generate_s = 0, train_s = 0, other_s = 0;
  CommCounts comm;           ///< of the four models and their world
  StepRecord actor, critic;  ///< of the last update
  int64_t actor_skipped = 0, critic_skipped = 0;
  int64_t peak_bytes =
      0;  ///< the most that models, optimizers and cache took on a rank, slots apart
};

class Ppo {
 public:
  /// `prompts` are the token ids of the whole data set, the same on every rank.
  /// A global batch larger than the data becomes the data: a step has no prompt twice.
  /// Errors: those of check_ppo (rlhf/ppo_check.h), and UsageError for an impossible average.
  Ppo(PpoModels models, PpoSettings settings, std::vector<std::vector<int64_t>> prompts,
      ScoreFunction score = {});

  /// Step `step` (from 0): generate, score, N updates of actor and critic. Collective.
  PpoRecord step(int64_t step);

  /// This rank's experiences of the last step, for samples and tests.
  const std::vector<Experience>& last_experiences() const { return experiences_; }
  int64_t global_batch() const { return settings_.global_batch; }
  Trainer& actor_trainer() { return actor_trainer_; }
  Trainer& critic_trainer() { return critic_trainer_; }
  /// Null without ema_beta.
  WeightAverage* actor_average() { return average_.has_value() ? &*average_ : nullptr; }
  /// The last record's reward_ema, for checkpoints; empty before the first step.
  std::optional<double> reward_ema() const { return reward_ema_; }
  void set_reward_ema(std::optional<double> value) { reward_ema_ = value; }

 private:
  struct Sums;

  CommCounts comm_counts() const;
  std::vector<GenerationRequest> requests(int64_t step);
  void generate(int64_t step, PpoRecord& record);
  int64_t bytes_without_slots();
  void judge();
  void score_answers();
  void estimate();
  void train(PpoRecord& record);
  void update(int64_t minibatch, Sums& sums, PpoRecord& record);
  void train_actor(std::span<Experience> part, double weight, Sums& sums);
  void train_critic(std::span<Experience> part, double weight, Sums& sums);
  int64_t num_minibatches() const;
  void summarise(const Sums& sums, PpoRecord& record);

  static void apply_chat_mask(Experience& experience);
  int64_t num_micro_batches(int64_t sequences) const;
  double token_weight(std::span<const Experience> part) const;

  PpoModels models_;
  PpoSettings settings_;
  std::vector<std::vector<int64_t>> prompts_;
  ScoreFunction score_;
  Hybrid hybrid_;
  Trainer actor_trainer_;
  Trainer critic_trainer_;
  std::optional<WeightAverage> average_;
  std::optional<double> reward_ema_;
  std::vector<Experience> experiences_;
  std::vector<size_t> minibatch_begin_;  ///< in experiences_, one more than minibatches
};

}  // namespace reknit
