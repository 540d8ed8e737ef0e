// Training steps of a language model: the loss over the global batch, and its gradient.
//
// The loss is the sum over the global batch's targets divided by their number. Every rank
// passes its part of the batch (rank_part); no number depends on the number of ranks, on
// the micro-batch or on the placement, beyond the rounding of sums.
#pragma once

#include "reknit/engine/lm_batch.h"
#include "reknit/engine/model.h"
#include "reknit/engine/trainer.h"

#include <optional>
#include <span>

namespace reknit {

struct LmSettings {
  int64_t micro_batch = 1;  ///< sequences of one forward on a rank
  uint64_t seed = 1234;     ///< of dropout
  bool dropout = true;      ///< at the rates of the model's spec
  Checkpointing checkpointing;
  /// Measures the parts of a step; the host then waits for the device between them.
  bool timed = false;
  TrainerSettings trainer;
};

/// Seconds of this rank; all 0 unless asked for.
struct LmTimes {
  double forward_s = 0;  ///< and the head's backward
  double backward_s = 0;
  double reduce_s = 0;  ///< waiting for gradients after the last backward
  double update_s = 0;
};

/// One step's numbers; the same on every rank but for the times.
struct LmStep {
  double loss = 0;     ///< before the update; 0 for a batch without targets
  int64_t tokens = 0;  ///< targets of the global batch
  StepRecord update;
  LmTimes times;
};

/// A sum over targets, and how many they are.
struct LmLoss {
  double sum = 0;
  double targets = 0;
};

/// Every method is collective over the store's ranks; one thread, the rank's.
class LmTrainer {
 public:
  /// `model` outlives it.
  LmTrainer(Model& model, LmSettings settings);

  /// One update from `mine`, this rank's part of step `step` (from 0) with `global_batch`
  /// sequences; `position` as for Trainer::step. Errors and skips as Trainer's: a
  /// loss that is NaN comes with a gradient that is.
  LmStep step(int64_t step, int64_t global_batch, std::span<const LmSequence> mine,
              std::optional<int64_t> position = {});

  /// The loss of `global_batch` sequences without dropout; nothing is changed.
  LmLoss evaluate(int64_t global_batch, std::span<const LmSequence> mine);

  Trainer& trainer() { return trainer_; }

 private:
  /// Forwards that every rank runs for a batch, empty ones among them.
  int64_t num_forwards(int64_t global_batch) const;
  std::span<const LmSequence> micro_batch(std::span<const LmSequence> mine, int64_t index) const;
  /// Ends a part of a timed step: adds its seconds.
  void lap(double& seconds);

  Model& model_;
  LmSettings settings_;
  Trainer trainer_;
  double lap_start_ = 0;
};

}  // namespace reknit
