// Pretraining: steps over samples of token files, in an order that is known beforehand.
//
// Sample i of the run is the data set's i-th; the batch of a step is the next ones, split
// over the ranks in rank order. So every number of a run is a function of (seed, step): not
// of ranks, micro-batches, or where it was resumed.
#pragma once

#include "reknit/data/blend.h"
#include "reknit/engine/lm_trainer.h"
#include "reknit/optim/schedule.h"

#include <memory>
#include <optional>
#include <vector>

namespace reknit {

/// Sequences of a step, over all ranks: `global`, or fewer at the beginning.
struct BatchPlan {
  int64_t global = 1;
  int64_t start = 0;      ///< with an increment: the first batch
  int64_t increment = 0;  ///< divides global - start; 0: no growth
  int64_t samples = 0;    ///< over which it grows, in equal parts

  /// After `consumed` samples.
  int64_t at(int64_t consumed) const;
  /// The largest number of steps that need at most `samples_in_all` samples.
  int64_t steps_for(int64_t samples_in_all) const;
  /// What `steps` steps need.
  int64_t samples_for(int64_t steps) const;
};

struct PretrainSettings {
  LmSettings lm;
  DocumentRules documents;
  BatchPlan batch;
  std::optional<Schedule> schedule;  ///< in samples; none: the trainer's
};

/// One step's numbers; the same on every rank but for the times.
struct PretrainRecord {
  int64_t step = 0;  ///< from 1
  LmStep lm;
  int64_t global_batch = 0;
  int64_t samples = 0;  ///< consumed so far, this step's included
  double seconds = 0;
};

/// Every method is collective over the store's ranks; one thread, the rank's.
class Pretrain {
 public:
  /// `model` outlives it. InputError if the samples are longer than the model's positions.
  Pretrain(Model& model, PretrainSettings settings, std::shared_ptr<const BlendedDataset> train);

  /// Step number `step`, from 0; steps come in order.
  PretrainRecord step(int64_t step);
  /// The mean loss over the first `samples` samples of `data`, without dropout.
  double evaluate(const BlendedDataset& data, int64_t samples);

  Trainer& trainer() { return lm_.trainer(); }
  void set_schedule(const Schedule& schedule) {
    settings_.schedule = schedule;
    trainer().set_schedule(schedule);
  }

  /// Everything a checkpoint needs besides the trainer's state.
  struct Position {
    int64_t consumed = 0;   ///< samples read
    int64_t scheduled = 0;  ///< samples of the updates that were applied: the schedule's
  };
  const Position& position() const { return position_; }
  void set_position(const Position& position) { position_ = position; }

 private:
  std::vector<LmSequence> read(const BlendedDataset& data, int64_t first, int64_t count) const;

  Model& model_;
  PretrainSettings settings_;
  std::shared_ptr<const BlendedDataset> train_;
  LmTrainer lm_;
  Position position_;
};

}  // namespace reknit
