#include "reknit/engine/lm_trainer.h"

#include "reknit/base/profile_range.h"
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

double targets_of(std::span<const LmSequence> sequences) {
  double targets = 0;
  for (const LmSequence& sequence : sequences) {
    targets += static_cast<double>(sequence.num_targets());
  }
  return targets;
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
  Communicator& world = *model_.store.comms().world;
  const Stream& compute = this_rank().compute;
  const auto fp64 = at::TensorOptions(at::kDouble).device(this_rank().device);
  // Until the norm nothing here waits for the device: it stays supplied with work.
  const at::Tensor targets =
      world.all_reduce({at::full({1}, targets_of(mine), fp64)}, ReduceOp::kSum, compute)
          .wait(compute)[0];
  const at::Tensor d_logp =
      at::where(targets > 0, -trainer_.loss_scale() / targets, 0.0).to(at::kFloat);
  LmStep record;
  std::optional<LmBatch::DropoutKey> key;
  if (settings_.dropout) {
    key = {settings_.seed, static_cast<uint64_t>(step)};
  }
  at::Tensor loss = at::zeros({1}, fp64);
  lap_start_ = now();
  for (int64_t i = 0; i < num_forwards(global_batch); ++i) {
    const ProfileRange range("micro-batch", i);
    const LmBatch batch = LmBatch::of(micro_batch(mine, i), model_.decoder.spec(), key);
    std::shared_ptr<Saved> saved;
    const ops::TokenLogprobs out =
        model_.decoder.learn_logprobs(model_.store, batch.tokens, batch.targets,
                                      batch.counted * d_logp, &saved, settings_.checkpointing);
    loss.sub_(out.logp.sum(at::kDouble));
    lap(record.times.forward_s);
    model_.decoder.learn_backward(model_.store, std::move(saved));
    lap(record.times.backward_s);
  }
  Event counted;
  counted.record(compute);
  trainer_.reduce();
  lap(record.times.reduce_s);
  record.update = trainer_.step(position);
  lap(record.times.update_s);
  // On a stream of its own, so that the update is not waited for.
  const Stream& copy = this_rank().copy;
  copy.wait(counted);
  const StreamScope scope(copy);
  loss = world.all_reduce({loss}, ReduceOp::kSum, copy).wait_on_host()[0];
  const at::Tensor sums = at::cat({loss, targets}).cpu();
  const auto* sum = sums.const_data_ptr<double>();
  record.tokens = static_cast<int64_t>(sum[1]);
  record.loss = sum[1] > 0 ? sum[0] / sum[1] : 0.0;
  return record;
}

LmLoss LmTrainer::evaluate(int64_t global_batch, std::span<const LmSequence> mine) {
  LmLoss loss;
  loss.targets = reduce_over_ranks(*model_.store.comms().world, {targets_of(mine)})[0];
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
