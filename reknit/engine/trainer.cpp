#include "reknit/engine/trainer.h"

#include "reknit/base/log.h"
#include "reknit/optim/grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace reknit {

Trainer::Trainer(Store& store, TrainerSettings settings)
    : store_(store),
      settings_(std::move(settings)),
      optimizer_(store, settings_.adam),
      scaler_(settings_.scaler) {}

double Trainer::loss_scale() const {
  return scaled() ? scaler_.scale() : 1.0;
}

StepRecord Trainer::step(std::optional<double> lr) {
  prepare(lr);
  return finish();
}

void Trainer::reduce() {
  if (!reduced_) {
    store_.finish_gradients();
    reduced_ = true;
  }
}

bool Trainer::prepare(std::optional<double> lr) {
  record_ = StepRecord{};
  record_.loss_scale = loss_scale();
  record_.lr = lr.value_or(settings_.schedule.at(applied_, settings_.lr));
  reduce();
  reduced_ = false;
  shards_ = store_.begin_update();
  record_.grad_norm = global_grad_norm(store_, shards_) / record_.loss_scale;
  ++steps_;
  return std::isfinite(record_.grad_norm);
}

StepRecord Trainer::finish(bool hold) {
  const bool finite = std::isfinite(record_.grad_norm);
  if (!finite) {
    skip();
  }
  if (!finite || hold) {
    store_.drop_step();
    shards_.clear();
    return record_;
  }
  const double clip =
      settings_.clip > 0 ? std::min(1.0, settings_.clip / (record_.grad_norm + 1e-6)) : 1.0;
  const at::Tensor grad_scale = at::full({1}, clip / record_.loss_scale,
                                         at::TensorOptions(at::kFloat).device(this_rank().device));
  optimizer_.update(shards_, record_.lr, grad_scale);
  store_.end_update();
  shards_.clear();
  ++applied_;
  record_.applied = true;
  if (scaled()) {
    REKNIT_INVARIANT(scaler_.update(false), "a clean step never ends a run");
  }
  return record_;
}

void Trainer::skip() {
  const Nonfinite found = first_nonfinite(store_, shards_);
  const std::string what = str("step ", steps_, " of ", settings_.name, ": the gradient of ",
                               found.param, " holds ", found.kind);
  if (store_.settings().dtype == at::kFloat) {
    throw NumbersError(what, "lower the learning rate, or look at the data of this step");
  }
  const double before = scaler_.scale();
  if (scaled() && !scaler_.update(true)) {
    throw NumbersError(str(what, " and the loss scale is at its floor of ", before, " (", skipped(),
                           " steps were skipped)"),
                       "the weights or the learning rate do not fit fp16: try bf16");
  }
  if (this_rank().rank == 0) {
    log_warning(what, "; the update was skipped on all ranks (", skipped(), " skipped so far",
                scaled() ? str(", loss scale ", before, " -> ", scaler_.scale()) : "", ")");
  }
}

void Trainer::restore(const State& state) {
  steps_ = state.steps;
  applied_ = state.applied;
  optimizer_.set_step(state.applied);
  scaler_.restore(state.scaler);
}

}  // namespace reknit
