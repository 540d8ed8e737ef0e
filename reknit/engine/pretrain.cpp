#include "reknit/engine/pretrain.h"

#include "reknit/engine/parts.h"

#include <algorithm>
#include <chrono>

namespace reknit {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

int64_t BatchPlan::at(int64_t consumed) const {
  if (increment == 0 || consumed >= samples) {
    return global;
  }
  const int64_t parts = (global - start) / increment;
  return std::min(global, start + consumed * parts / samples * increment);
}

int64_t BatchPlan::steps_for(int64_t samples_in_all) const {
  int64_t steps = 0;
  int64_t consumed = 0;
  while (at(consumed) < global && consumed + at(consumed) <= samples_in_all) {
    consumed += at(consumed);
    ++steps;
  }
  return at(consumed) < global ? steps : steps + (samples_in_all - consumed) / global;
}

int64_t BatchPlan::samples_for(int64_t steps) const {
  int64_t consumed = 0;
  while (steps > 0 && at(consumed) < global) {
    consumed += at(consumed);
    --steps;
  }
  return consumed + steps * global;
}

Pretrain::Pretrain(Model& model, PretrainSettings settings,
                   std::shared_ptr<const BlendedDataset> train)
    : model_(model),
      settings_(std::move(settings)),
      train_(std::move(train)),
      lm_(model, settings_.lm) {
  if (settings_.schedule) {
    trainer().set_schedule(*settings_.schedule);
  }
  model_.decoder.spec().require_length(train_->sequence_length());
}

std::vector<LmSequence> Pretrain::read(const BlendedDataset& data, int64_t first,
                                       int64_t count) const {
  const Communicator& world = *model_.store.comms().world;
  const RankPart part = rank_part(count, world.rank(), world.size());
  std::vector<int64_t> sample(static_cast<size_t>(data.sequence_length() + 1));
  std::vector<LmSequence> mine;
  for (int64_t i = first + part.begin; i < first + part.end; ++i) {
    data.read(i, sample);
    mine.push_back(lm_sequence(sample, static_cast<uint64_t>(i), settings_.documents));
  }
  return mine;
}

PretrainRecord Pretrain::step(int64_t step) {
  const auto start = Clock::now();
  PretrainRecord record;
  record.step = step + 1;
  record.global_batch = settings_.batch.at(position_.consumed);
  const std::vector<LmSequence> mine = read(*train_, position_.consumed, record.global_batch);
  std::optional<int64_t> scheduled;
  if (settings_.schedule) {
    scheduled = position_.scheduled;
  }
  record.lm = lm_.step(step, record.global_batch, mine, scheduled);
  position_.consumed += record.global_batch;
  if (record.lm.update.applied) {
    position_.scheduled += record.global_batch;
  }
  record.samples = position_.consumed;
  record.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return record;
}

double Pretrain::evaluate(const BlendedDataset& data, int64_t samples) {
  LmLoss all;
  for (int64_t first = 0; first < samples; first += settings_.batch.global) {
    const int64_t count = std::min(settings_.batch.global, samples - first);
    const LmLoss loss = lm_.evaluate(count, read(data, first, count));
    all.sum += loss.sum;
    all.targets += loss.targets;
  }
  return all.targets > 0 ? all.sum / all.targets : 0.0;
}

}  // namespace reknit
