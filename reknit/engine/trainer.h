// One optimizer step over a store: boundary, norm, clip, update or collective skip.
#pragma once

#include "reknit/optim/loss_scaler.h"
#include "reknit/optim/optimizer.h"
#include "reknit/optim/schedule.h"

#include <cstdint>
#include <optional>
#include <string>

namespace reknit {

struct TrainerSettings {
  std::string name = "model";  ///< in messages: "actor"
  double lr = 0.0;
  Schedule schedule;
  OptimizerSettings optimizer;
  std::optional<DecayRamp> decay_ramp;  ///< in place of the optimizer's weight decay
  double clip = 1.0;                    ///< global L2 norm; 0: off
  LossScalerSettings scaler;            ///< used with fp16 stores only
};

/// What one step did; the same on every rank.
struct StepRecord {
  double lr = 0.0;
  double grad_norm = 0.0;              ///< global, unscaled, before clipping
  double loss_scale = 1.0;             ///< of this step
  std::optional<double> weight_decay;  ///< of this step, where a ramp says it
  bool applied = false;
};

/// Call order: per step any number of backward passes on the store, each with its loss
/// multiplied by loss_scale(), then step(). Collective; one thread, the rank's.
///
/// inf or NaN in a gradient: fp16 skips the step and follows the scaler, bf16 skips it,
/// both on all ranks together, counted and said in one line, without moving the schedule;
/// fp32 throws NumbersError, and so does fp16 at the floor of its scale.
class Trainer {
 public:
  Trainer(Store& store, TrainerSettings settings);

  double loss_scale() const;
  /// prepare() and finish(). `position` is where the schedule stands, in its own unit (samples);
  /// none: updates made.
  StepRecord step(std::optional<int64_t> position = {});
  /// Sums the gradients over the ranks; prepare() does it unless it has been done.
  void reduce();
  /// The first half: reduce(), and the norm. False if it is not finite: finish() will skip.
  bool prepare(std::optional<int64_t> position = {});
  /// The second half: the update or the skip. `hold` skips although the gradients are
  /// finite (the other model of a pair overflowed); the scaler takes no notice of that.
  StepRecord finish(bool hold = false);

  int64_t steps() const { return steps_; }      ///< calls of step()
  int64_t applied() const { return applied_; }  ///< updates made
  int64_t skipped() const { return steps_ - applied_; }

  /// Everything a checkpoint needs besides shards and moments.
  struct State {
    int64_t steps = 0;
    int64_t applied = 0;
    LossScaler::State scaler{};
  };
  State state() const { return {steps_, applied_, scaler_.state()}; }
  /// Between steps, or after a Store::drop_step: gradients that were reduced are forgotten.
  void restore(const State& state);
  Optimizer& optimizer() { return *optimizer_; }
  void set_schedule(const Schedule& schedule) { settings_.schedule = schedule; }
  void set_decay_ramp(const DecayRamp& ramp) { settings_.decay_ramp = ramp; }

 private:
  bool scaled() const { return store_.settings().dtype == at::kHalf; }
  void skip();
  UpdateRates rates(int64_t position) const;

  Store& store_;
  TrainerSettings settings_;
  std::unique_ptr<Optimizer> optimizer_;
  LossScaler scaler_;
  std::vector<OptimizerShard> shards_;  ///< between prepare() and finish()
  StepRecord record_;                   ///< of that step
  UpdateRates rates_;                   ///< of that step
  bool reduced_ = false;                ///< reduce() was called for the next step
  int64_t steps_ = 0;
  int64_t applied_ = 0;
};

}  // namespace reknit
