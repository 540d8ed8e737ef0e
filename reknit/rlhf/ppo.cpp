#include "reknit/rlhf/ppo.h"

#include "reknit/base/profile_range.h"
#include "reknit/data/rows.h"
#include "reknit/engine/parts.h"
#include "reknit/engine/runtime.h"
#include "reknit/rlhf/ppo_check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

namespace reknit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kRewardEmaAlpha = 0.9;

// Until the device has done what was queued.
double seconds_since(Clock::time_point start, Communicator& world) {
  world.synchronize(this_rank().compute);
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A scoring pass: nothing is kept for a backward, nothing stays gathered.
ops::TokenLogprobs logprobs(Model& model, const ExperienceBatch& batch, bool with_entropy) {
  auto result = model.decoder.logprobs(model.store, batch.tokens, batch.targets, Phase::kForward,
                                       with_entropy);
  model.store.finish_pass();
  return result;
}

at::Tensor values(Model& model, const ExperienceBatch& batch) {
  at::Tensor result = model.decoder.values(model.store, batch.tokens, Phase::kForward);
  model.store.finish_pass();
  return result;
}

std::span<Experience> slice(std::span<Experience> all, int64_t begin, int64_t count) {
  const auto size = static_cast<int64_t>(all.size());
  const int64_t first = std::min(begin, size);
  return all.subspan(static_cast<size_t>(first),
                     static_cast<size_t>(std::min(count, size - first)));
}

// What is summed over the answers and ranks for a record.
enum Sum : size_t {
  kAnswers,
  kEnded,
  kLength,
  kScored,
  kScore,
  kScoreSquares,
  kRankMean,
  kRanks,
  kTokens,
  kKl,
  kEntropy,
  kReturns,
  kReturnSquares,
  kErrors,
  kErrorSquares,
  kActorLoss,
  kCriticLoss,
  kClipped,
  kValueClipped,
  kTrained,
  kNumSums
};

// This rank's part of the sums, except those of the losses.
std::vector<double> sums_of(std::span<const Experience> experiences, PpoRules rules) {
  std::vector<double> all(kNumSums, 0.0);
  for (const Experience& e : experiences) {
    all[kAnswers] += 1;
    all[kEnded] += e.ended;
    all[kLength] += static_cast<double>(e.answer_length());
    if (rules == PpoRules::kStrict || e.unmasked() > 0) {
      all[kScored] += 1;
      all[kScore] += e.score;
      all[kScoreSquares] += e.score * e.score;
    }
    for (size_t t = 0; t < e.mask.size(); ++t) {
      if (e.mask[t] == 0) {
        continue;
      }
      const double error = e.returns[t] - e.values[t];
      all[kTokens] += 1;
      all[kKl] += static_cast<double>(e.logp[t]) - e.ref_logp[t];
      all[kEntropy] += e.entropy[t];
      all[kReturns] += e.returns[t];
      all[kReturnSquares] += e.returns[t] * e.returns[t];
      all[kErrors] += error;
      all[kErrorSquares] += error * error;
    }
  }
  if (all[kScored] > 0) {
    all[kRankMean] = all[kScore] / all[kScored];
    all[kRanks] = 1;
  }
  return all;
}

}  // namespace

std::vector<const Model*> PpoModels::all() const {
  std::vector<const Model*> models{actor, critic, reference};
  if (reward != nullptr) {
    models.push_back(reward);
  }
  return models;
}

/// Running sums of the last pass over the global batch; local until summarise().
struct Ppo::Sums {
  double actor_loss = 0, critic_loss = 0;
  double clipped = 0, value_clipped = 0;
  double tokens = 0;     ///< unmasked entries that were trained on
  double ratio_max = 0;  ///< maximum, not a sum
};

Ppo::Ppo(PpoModels models, PpoSettings settings, std::vector<std::vector<int64_t>> prompts,
         ScoreFunction score)
    : models_(models),
      settings_(std::move(settings)),
      prompts_(std::move(prompts)),
      score_(std::move(score)),
      hybrid_(models.actor->decoder, models.actor->store, settings_.hybrid),
      actor_trainer_(models.actor->store, settings_.actor),
      critic_trainer_(models.critic->store, settings_.critic) {
  std::vector<NamedSpec> specs;
  for (const Model* model : models_.all()) {
    specs.push_back({model->store.settings().name, model->decoder.spec()});
  }
  check_ppo(settings_, specs, prompts_);
  if (settings_.minibatch == 0) {
    settings_.minibatch = settings_.global_batch;
  }
  settings_.global_batch = std::min(settings_.global_batch, static_cast<int64_t>(prompts_.size()));
  require<UsageError>((models_.reward != nullptr) != static_cast<bool>(score_),
                      "PPO needs either a reward model or a reward function");
  if (settings_.ema_beta) {
    average_.emplace(models_.actor->store, *settings_.ema_beta);
  }
}

PpoRecord Ppo::step(int64_t step) {
  const auto start = Clock::now();
  const CommCounts before = comm_counts();
  PpoRecord record;
  record.step = step + 1;
  generate(step, record);
  judge();
  score_answers();
  estimate();
  const auto train_start = Clock::now();
  train(record);
  Communicator& world = *models_.actor->store.comms().world;
  record.train_s = seconds_since(train_start, world);
  record.e2e_s = seconds_since(start, world);
  record.other_s = record.e2e_s - record.gather_s - record.generate_s - record.train_s;
  record.comm = comm_counts();
  record.comm -= before;
  return record;
}

CommCounts Ppo::comm_counts() const {
  CommCounts sum;
  std::set<const Communicator*> worlds;
  for (const Model* model : models_.all()) {
    const StoreComms& comms = model->store.comms();
    sum += comms.counts();
    if (worlds.insert(comms.world.get()).second) {
      sum += comms.world->counts();
    }
  }
  return sum;
}

int64_t Ppo::bytes_without_slots() {
  int64_t bytes = hybrid_.cache_bytes() + actor_trainer_.optimizer().bytes() +
                  critic_trainer_.optimizer().bytes();
  for (const Model* model : models_.all()) {
    bytes += model->store.shard_bytes();
  }
  if (average_) {
    for (const at::Tensor& shard : average_->shards()) {
      bytes += static_cast<int64_t>(shard.nbytes());
    }
  }
  return bytes;
}

// The last one may be smaller, where the data are fewer than a step could take.
int64_t Ppo::num_minibatches() const {
  return (settings_.global_batch + settings_.minibatch - 1) / settings_.minibatch;
}

// The prompts of this rank: of every minibatch its part, in rank order. Begins experiences_.
std::vector<GenerationRequest> Ppo::requests(int64_t step) {
  const Communicator& world = *models_.actor->store.comms().world;
  const auto count = static_cast<int64_t>(prompts_.size());
  std::vector<GenerationRequest> mine;
  int64_t epoch = -1;
  std::vector<int64_t> order;
  experiences_.clear();
  minibatch_begin_ = {0};
  for (int64_t base = 0; base < settings_.global_batch; base += settings_.minibatch) {
    const int64_t size = std::min(settings_.minibatch, settings_.global_batch - base);
    const RankPart part = rank_part(size, world.rank(), world.size());
    for (int64_t i = base + part.begin; i < base + part.end; ++i) {
      const int64_t sequence = step * settings_.global_batch + i;
      if (sequence / count != epoch) {
        epoch = sequence / count;
        order = permutation(settings_.seed, epoch, count);
      }
      Experience& experience = experiences_.emplace_back();
      experience.row = static_cast<size_t>(order[sequence % count]);
      experience.sequence = static_cast<uint64_t>(sequence);
      experience.tokens = prompts_[experience.row];
      experience.prompt_length = static_cast<int64_t>(experience.tokens.size());
      mine.push_back({experience.tokens, experience.sequence});
    }
    minibatch_begin_.push_back(experiences_.size());
  }
  return mine;
}

void Ppo::generate(int64_t step, PpoRecord& record) {
  const ProfileRange range("generate", step);
  const auto start = Clock::now();
  const std::vector<GenerationRequest> mine = requests(step);
  std::vector<Generation> answers;
  {
    GenerateLease lease = hybrid_.enter_generation();
    record.gather_s = hybrid_.gather_seconds();
    answers = lease.generate(mine, settings_.generate_batch, settings_.sampling);
    record.peak_bytes =
        bytes_without_slots();  // weights may be pinned now: nothing later takes more
  }
  Communicator& world = *models_.actor->store.comms().world;
  record.generate_s = seconds_since(start, world) - record.gather_s;
  for (size_t i = 0; i < experiences_.size(); ++i) {
    Experience& experience = experiences_[i];
    experience.ended = answers[i].ended;
    experience.tokens.insert(experience.tokens.end(), answers[i].tokens.begin(),
                             answers[i].tokens.end());
    experience.mask.assign(answers[i].tokens.size(), 1);
    if (settings_.rules == PpoRules::kDeepSpeedChat) {
      apply_chat_mask(experience);
    }
  }
}

// The end token equals the pad token there, so it is masked; an answer of at most one
// other token is dropped.
void Ppo::apply_chat_mask(Experience& experience) {
  if (experience.ended) {
    experience.mask.back() = 0;
  }
  if (experience.unmasked() <= 1) {
    std::fill(experience.mask.begin(), experience.mask.end(), uint8_t{0});
  }
}

// The largest number of forwards any rank needs: all of them run that many.
int64_t Ppo::num_micro_batches(int64_t sequences) const {
  const int world = models_.actor->store.comms().world->size();
  const int64_t most = (sequences + world - 1) / world;
  return std::max<int64_t>(1, (most + settings_.micro_batch - 1) / settings_.micro_batch);
}

// What actor, reference and critic say of every answer, before any update.
void Ppo::judge() {
  const ProfileRange range("judge");
  const int64_t forwards = num_micro_batches(settings_.minibatch) * num_minibatches();
  for (int64_t i = 0; i < forwards; ++i) {
    const auto part = slice(experiences_, i * settings_.micro_batch, settings_.micro_batch);
    const ExperienceBatch batch = ExperienceBatch::of(part);
    // One model after the other: they take turns on the same slots.
    const auto actor = logprobs(*models_.actor, batch, true);
    const auto reference = logprobs(*models_.reference, batch, false);
    const at::Tensor all_values = values(*models_.critic, batch);
    auto logp = batch.entries(part, actor.logp);
    auto entropy = batch.entries(part, actor.entropy);
    auto ref_logp = batch.entries(part, reference.logp);
    auto old_values = batch.entries(part, all_values);
    for (size_t k = 0; k < part.size(); ++k) {
      part[k].logp = std::move(logp[k]);
      part[k].entropy = std::move(entropy[k]);
      part[k].ref_logp = std::move(ref_logp[k]);
      part[k].values = std::move(old_values[k]);
    }
  }
}

void Ppo::score_answers() {
  const ProfileRange range("score answers");
  if (score_) {
    const std::vector<double> scores = score_(experiences_);
    REKNIT_INVARIANT(scores.size() == experiences_.size(), "a reward function gave ", scores.size(),
                     " scores for ", experiences_.size(), " answers");
    for (size_t i = 0; i < scores.size(); ++i) {
      experiences_[i].score = scores[i];
    }
    return;
  }
  const int64_t forwards = num_micro_batches(settings_.minibatch) * num_minibatches();
  for (int64_t i = 0; i < forwards; ++i) {
    const auto part = slice(experiences_, i * settings_.micro_batch, settings_.micro_batch);
    const ExperienceBatch batch = ExperienceBatch::of(part);
    const at::Tensor scores = values(*models_.reward, batch).to(at::kCPU, at::kFloat).contiguous();
    for (size_t k = 0; k < part.size(); ++k) {
      // DeepSpeed-Chat reads the last token before the end token.
      const bool before_end = settings_.rules == PpoRules::kDeepSpeedChat && part[k].ended;
      part[k].score = scores.const_data_ptr<float>()[batch.last_rows[k] - (before_end ? 1 : 0)];
    }
  }
}

void Ppo::estimate() {
  for (Experience& experience : experiences_) {
    const auto rewards =
        token_rewards(experience.logp, experience.ref_logp, experience.score, settings_.constants);
    Advantages estimated = estimate_advantages(rewards, experience.values, settings_.constants);
    experience.advantages = std::move(estimated.advantages);
    experience.returns = std::move(estimated.returns);
  }
}

void Ppo::train(PpoRecord& record) {
  const ProfileRange range("train");
  Sums sums;
  const int64_t minibatches = num_minibatches();
  for (int epoch = 0; epoch < settings_.ppo_epochs; ++epoch) {
    sums = Sums{};
    for (int64_t minibatch = 0; minibatch < minibatches; ++minibatch) {
      update(minibatch, sums, record);
    }
  }
  summarise(sums, record);
}

// Strict: one over the unmasked tokens of the global minibatch. DeepSpeed-Chat: the mean
// over the ranks that have tokens of each rank's own token mean.
double Ppo::token_weight(std::span<const Experience> part) const {
  Communicator& world = *models_.actor->store.comms().world;
  double tokens = 0;
  for (const Experience& experience : part) {
    tokens += static_cast<double>(experience.unmasked());
  }
  if (settings_.rules == PpoRules::kDeepSpeedChat) {
    const double ranks = reduce_over_ranks(world, {tokens > 0 ? 1.0 : 0.0})[0];
    return tokens == 0 ? 0.0 : 1.0 / (tokens * ranks);
  }
  const double total = reduce_over_ranks(world, {tokens})[0];
  return total == 0 ? 0.0 : 1.0 / total;
}

void Ppo::update(int64_t minibatch, Sums& sums, PpoRecord& record) {
  const std::span<Experience> part =
      std::span(experiences_)
          .subspan(minibatch_begin_[minibatch],
                   minibatch_begin_[minibatch + 1] - minibatch_begin_[minibatch]);
  const double weight = token_weight(part);
  const int64_t forwards = num_micro_batches(settings_.minibatch);
  for (int64_t i = 0; i < forwards; ++i) {
    train_actor(slice(part, i * settings_.micro_batch, settings_.micro_batch), weight, sums);
  }
  const bool actor_finite = actor_trainer_.prepare();
  for (int64_t i = 0; i < forwards; ++i) {
    train_critic(slice(part, i * settings_.micro_batch, settings_.micro_batch), weight, sums);
  }
  const bool critic_finite = critic_trainer_.prepare();
  const bool hold = settings_.align_overflow && !(actor_finite && critic_finite);
  record.actor = actor_trainer_.finish(hold);
  record.critic = critic_trainer_.finish(hold);
  if (average_.has_value() && record.actor.applied) {
    average_->update();
  }
}

void Ppo::train_actor(std::span<Experience> part, double weight, Sums& sums) {
  const ExperienceBatch batch = ExperienceBatch::of(part);
  Model& actor = *models_.actor;
  std::shared_ptr<Saved> saved;
  const auto scored =
      actor.decoder.logprobs(actor.store, batch.tokens, batch.targets, Phase::kForward, false,
                             &saved, settings_.actor_checkpointing);
  const auto logp = batch.entries(part, scored.logp);
  std::vector<float> gradient(batch.entry_rows.size());
  size_t first = 0;
  for (size_t k = 0; k < part.size(); ++k) {
    const std::span<float> out = std::span(gradient).subspan(first, logp[k].size());
    const PolicyLoss loss =
        policy_loss(logp[k], part[k].logp, part[k].advantages, part[k].mask,
                    settings_.constants.cliprange, weight * actor_trainer_.loss_scale(), out);
    sums.actor_loss += loss.loss * weight;
    sums.clipped += static_cast<double>(loss.clipped);
    sums.ratio_max = std::max(sums.ratio_max, loss.ratio_max);
    sums.tokens += static_cast<double>(part[k].unmasked());
    first += logp[k].size();
  }
  actor.decoder.logprobs_backward(actor.store, std::move(saved), batch.scatter(gradient));
}

void Ppo::train_critic(std::span<Experience> part, double weight, Sums& sums) {
  const ExperienceBatch batch = ExperienceBatch::of(part);
  Model& critic = *models_.critic;
  std::shared_ptr<Saved> saved;
  const at::Tensor all_values = critic.decoder.values(critic.store, batch.tokens, Phase::kForward,
                                                      &saved, settings_.critic_checkpointing);
  const auto new_values = batch.entries(part, all_values);
  std::vector<float> gradient(batch.entry_rows.size());
  size_t first = 0;
  for (size_t k = 0; k < part.size(); ++k) {
    const std::span<float> out = std::span(gradient).subspan(first, new_values[k].size());
    const ValueLoss loss =
        value_loss(new_values[k], part[k].values, part[k].returns, part[k].mask,
                   settings_.constants.cliprange_value, weight * critic_trainer_.loss_scale(), out);
    sums.critic_loss += loss.loss * weight;
    sums.value_clipped += static_cast<double>(loss.clipped);
    first += new_values[k].size();
  }
  critic.decoder.values_backward(critic.store, std::move(saved), batch.scatter(gradient));
}

void Ppo::summarise(const Sums& sums, PpoRecord& record) {
  std::vector<double> all = sums_of(experiences_, settings_.rules);
  all[kActorLoss] = sums.actor_loss;
  all[kCriticLoss] = sums.critic_loss;
  all[kClipped] = sums.clipped;
  all[kValueClipped] = sums.value_clipped;
  all[kTrained] = sums.tokens;
  Communicator& world = *models_.actor->store.comms().world;
  const std::vector<double> total = reduce_over_ranks(world, all);
  const auto mean = [&](size_t what, size_t count) {
    return total[what] / std::max(1.0, total[count]);
  };
  const auto variance = [&](size_t sum, size_t squares, size_t count) {
    return std::max(0.0, mean(squares, count) - std::pow(mean(sum, count), 2));
  };
  record.reward =
      settings_.rules == PpoRules::kStrict ? mean(kScore, kScored) : mean(kRankMean, kRanks);
  reward_ema_ = kRewardEmaAlpha * reward_ema_.value_or(record.reward) +
                (1.0 - kRewardEmaAlpha) * record.reward;
  record.reward_ema = *reward_ema_;
  record.reward_std = std::sqrt(variance(kScore, kScoreSquares, kScored));
  record.eos_fraction = mean(kEnded, kAnswers);
  record.answer_length = mean(kLength, kAnswers);
  record.tokens = static_cast<int64_t>(total[kTokens]);
  record.kl = mean(kKl, kTokens);
  record.entropy = mean(kEntropy, kTokens);
  const double return_variance = variance(kReturns, kReturnSquares, kTokens);
  record.explained_variance =
      return_variance > 0 ? 1.0 - variance(kErrors, kErrorSquares, kTokens) / return_variance : 0.0;
  const auto minibatches = static_cast<double>(num_minibatches());
  record.actor_loss = total[kActorLoss] / minibatches;
  record.critic_loss = total[kCriticLoss] / minibatches;
  record.clip_fraction = mean(kClipped, kTrained);
  record.value_clip_fraction = mean(kValueClipped, kTrained);
  const std::vector<double> most = reduce_over_ranks(
      world, {sums.ratio_max, static_cast<double>(record.peak_bytes)}, ReduceOp::kMax);
  record.ratio_max = most[0];
  record.peak_bytes = static_cast<int64_t>(most[1]);
  record.actor_skipped = actor_trainer_.skipped();
  record.critic_skipped = critic_trainer_.skipped();
}

}  // namespace reknit
