#include "reknit/engine/lm_trainer.h"

#include "reknit/engine/runtime.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace reknit {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

LmTrainer::LmTrainer(Model& model, LmSettings settings)
    : model_(model), settings_(std::move(settings)), trainer_(model.store, settings_.trainer) {
  REKNIT_INVARIANT(settings_.micro_batch > 0, "a micro-batch of ", settings_.micro_batch);
}

int64_t LmTrainer::num_forwards(int64_t global_batch) const {
  const int64_t world = model_.store.comms().world->size();
  const int64_t most = (global_batch + world - 1) / world;
  return std::max<int64_t>(1, (most + settings_.micro_batch - 1) / settings_.micro_batch);
}

std::span<const LmSequence> LmTrainer::micro_batch(std::span<const LmSequence> mine,
                                                   int64_t index) const {
  const auto size = static_cast<int64_t>(mine.size());
  const int64_t begin = std::min(size, index * settings_.micro_batch);
  return mine.subspan(static_cast<size_t>(begin),
                      static_cast<size_t>(std::min(settings_.micro_batch, size - begin)));
}

double LmTrainer::total_targets(std::span<const LmSequence> mine) const {
  double targets = 0;
  for (const LmSequence& sequence : mine) {
    targets += static_cast<double>(sequence.num_targets());
  }
  return reduce_over_ranks(*model_.store.comms().world, {targets})[0];
}

void LmTrainer::lap(double& seconds) {
  if (settings_.timed) {
    model_.store.comms().world->synchronize(this_rank().compute);
    const double end = now();
    seconds += end - lap_start_;
    lap_start_ = end;
  }
}

LmStep LmTrainer::step(int64_t step, int64_t global_batch, std::span<const LmSequence> mine,
                       std::optional<int64_t> position) {
  const double total = total_targets(mine);
  const double weight = total > 0 ? 1.0 / total : 0.0;
  LmStep record;
  record.tokens = static_cast<int64_t>(total);
  std::optional<LmBatch::DropoutKey> key;
  if (settings_.dropout) {
    key = {settings_.seed, static_cast<uint64_t>(step)};
  }
  at::Tensor loss = at::zeros({1}, at::TensorOptions(at::kDouble).device(this_rank().device));
  lap_start_ = now();
  for (int64_t i = 0; i < num_forwards(global_batch); ++i) {
    const LmBatch batch = LmBatch::of(micro_batch(mine, i), model_.decoder.spec(), key);
    std::shared_ptr<Saved> saved;
    const ops::TokenLogprobs out =
        model_.decoder.logprobs(model_.store, batch.tokens, batch.targets, Phase::kForward, false,
                                &saved, settings_.checkpointing);
    loss.sub_(out.logp.sum(at::kDouble));
    lap(record.times.forward_s);
    model_.decoder.logprobs_backward(model_.store, std::move(saved),
                                     batch.counted * (-weight * trainer_.loss_scale()));
    lap(record.times.backward_s);
  }
  trainer_.reduce();
  lap(record.times.reduce_s);
  record.update = trainer_.step(position);
  lap(record.times.update_s);
  const double sum = loss.item<double>();
  record.loss = reduce_over_ranks(*model_.store.comms().world, {sum})[0] * weight;
  return record;
}

LmLoss LmTrainer::evaluate(int64_t global_batch, std::span<const LmSequence> mine) {
  LmLoss loss;
  loss.targets = total_targets(mine);
  for (int64_t i = 0; i < num_forwards(global_batch); ++i) {
    const LmBatch batch = LmBatch::of(micro_batch(mine, i), model_.decoder.spec(), std::nullopt);
    loss.sum -=
        model_.decoder.logprobs(model_.store, batch.tokens, batch.targets, Phase::kForward, false)
            .logp.sum(at::kDouble)
            .item<double>();
    model_.store.finish_pass();
  }
  loss.sum = reduce_over_ranks(*model_.store.comms().world, {loss.sum})[0];
  return loss;
}

}  // namespace reknit
