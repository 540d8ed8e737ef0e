#include "reknit/engine/trainer.h"

#include "reknit/base/log.h"
#include "reknit/base/profile_range.h"
#include "reknit/optim/grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace reknit {

Trainer::Trainer(Store& store, TrainerSettings settings)
    : store_(store),
      settings_(std::move(settings)),
      optimizer_(Optimizer::create(store, settings_.optimizer, settings_.lr)),
      scaler_(settings_.scaler) {}

double Trainer::loss_scale() const {
  return scaled() ? scaler_.scale() : 1.0;
}

StepRecord Trainer::step(std::optional<int64_t> position) {
  prepare(position);
  return finish();
}

void Trainer::reduce() {
  if (!reduced_) {
    store_.finish_gradients();
    reduced_ = true;
  }
}

bool Trainer::prepare(std::optional<int64_t> position) {
  record_ = StepRecord{};
  record_.loss_scale = loss_scale();
  const int64_t at = position.value_or(applied_);
  record_.lr = settings_.schedule.at(at, settings_.lr);
  rates_ = rates(at);
  record_.weight_decay = rates_.weight_decay;
  reduce();
  reduced_ = false;
  shards_ = store_.begin_update();
  record_.grad_norm = global_grad_norm(store_, shards_) / record_.loss_scale;
  ++steps_;
  return std::isfinite(record_.grad_norm);
}

StepRecord Trainer::finish(bool hold) {
  const ProfileRange range("update");
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
  optimizer_->update(shards_, rates_, grad_scale);
  store_.end_update();
  shards_.clear();
  ++applied_;
  record_.applied = true;
  if (scaled()) {
    const bool goes_on = scaler_.update(false);
    REKNIT_INVARIANT(goes_on, "a clean step never ends a run");
  }
  return record_;
}

UpdateRates Trainer::rates(int64_t position) const {
  UpdateRates rates;
  for (const double lr : optimizer_->base_rates()) {
    rates.lr.push_back(settings_.schedule.at(position, lr));
  }
  if (const auto betas = settings_.schedule.betas(position)) {
    rates.beta1 = betas->beta1;
    rates.beta2 = betas->beta2;
  }
  if (settings_.decay_ramp) {
    rates.weight_decay = settings_.decay_ramp->at(position);
  }
  return rates;
}

void Trainer::skip() {
  const Nonfinite found = first_nonfinite(store_, shards_);
  const std::string what =
      str("step ", steps_, " of ", settings_.name, ": the ",
          found.param.empty() ? std::string("norm of the gradients is not finite")
                              : str("gradient of ", found.param, " holds ", found.kind));
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
  reduced_ = false;
  steps_ = state.steps;
  applied_ = state.applied;
  optimizer_->set_step(state.applied);
  scaler_.restore(state.scaler);
}

}  // namespace reknit
