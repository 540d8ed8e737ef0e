#include "reknit/optim/configured.h"

#include <cmath>

namespace reknit {
namespace {

AdamSettings adam(const OptimizerConfig& c) {
  return {.beta1 = c.betas.at(0),
          .beta2 = c.betas.at(1),
          .eps = c.eps,
          .weight_decay = c.weight_decay,
          .decoupled = c.adam_w_mode,
          .bias_correction = c.bias_correction};
}

LambSettings lamb(const OptimizerConfig& c) {
  return {.beta1 = c.betas.at(0),
          .beta2 = c.betas.at(1),
          .eps = c.eps,
          .weight_decay = c.weight_decay,
          .bias_correction = c.bias_correction,
          .min_coeff = c.min_coeff,
          .max_coeff = c.max_coeff};
}

MuonSettings muon(const OptimizerConfig& c) {
  MuonSettings settings;
  settings.momentum = c.momentum.value_or(settings.momentum);
  settings.nesterov = c.nesterov.value_or(settings.nesterov);
  settings.weight_decay = c.weight_decay;
  settings.ns_steps = c.ns_steps;
  settings.match_adamw = c.adjust_lr_fn == "match_rms_adamw";
  settings.muon_lr = c.muon_lr;
  settings.adam_lr = c.adam_lr;
  settings.beta1 = c.betas.at(0);
  settings.beta2 = c.betas.at(1);
  settings.eps = c.eps;
  return settings;
}

decltype(OptimizerSettings::kind) kind_of(const OptimizerConfig& c) {
  if (c.type == "adagrad") {
    return AdagradSettings{c.eps, c.weight_decay, c.lr_decay, c.initial_accumulator};
  }
  if (c.type == "lamb") {
    return lamb(c);
  }
  if (c.type == "lion") {
    return LionSettings{c.betas.at(0), c.betas.at(1), c.weight_decay};
  }
  if (c.type == "sgd") {
    return SgdSettings{c.momentum.value_or(0.0), c.dampening, c.nesterov.value_or(false),
                       c.weight_decay};
  }
  if (c.type == "muon") {
    return muon(c);
  }
  return adam(c);
}

}  // namespace

OptimizerSettings optimizer_settings(const OptimizerConfig& c) {
  return {.kind = kind_of(c), .decay_all = c.decay_all};
}

Schedule schedule_of(const SchedulerConfig& c, int64_t total_updates) {
  if (c.type.empty()) {
    return {};
  }
  Schedule schedule;
  schedule.kind = Schedule::parse(c.type);
  schedule.warmup = c.warmup_num_steps;
  schedule.total = c.total_num_steps.value_or(total_updates);
  schedule.min_lr = c.warmup_min_lr;
  schedule.max_lr = c.warmup_max_lr.value_or(-1.0);
  schedule.log_warmup = c.warmup_type == "log";
  schedule.warmup_min_ratio = c.warmup_min_ratio;
  schedule.cos_min_ratio = c.cos_min_ratio;
  if (schedule.kind == ScheduleKind::kOneCycle) {
    schedule.min_lr = c.cycle_min_lr.value_or(0.0);
    schedule.max_lr = c.cycle_max_lr.value_or(0.0);
    schedule.cycle = {
        .first_steps = c.cycle_first_step_size,
        .second_steps = c.cycle_second_step_size.value_or(c.cycle_first_step_size),
        .first_stairs = c.cycle_first_stair_count,
        .second_stairs = c.cycle_second_stair_count.value_or(c.cycle_first_stair_count),
        .decay_steps = c.decay_step_size,
        .decay_lr_rate = c.decay_lr_rate,
        .cycle_momentum = c.cycle_momentum,
        .min_momentum = c.cycle_min_mom,
        .max_momentum = c.cycle_max_mom,
        .decay_momentum_rate = c.decay_mom_rate};
  }
  if (schedule.kind == ScheduleKind::kLrRangeTest) {
    schedule.min_lr = c.lr_range_test_min_lr;
    schedule.range = {c.lr_range_test_step_size, c.lr_range_test_step_rate,
                      c.lr_range_test_staircase};
  }
  return schedule;
}

LossScalerSettings scaler_settings(const Fp16Config& c) {
  const bool dynamic = c.loss_scale == 0;
  return {
      .initial = dynamic ? std::pow(2.0, static_cast<double>(c.initial_scale_power)) : c.loss_scale,
      .window = c.loss_scale_window,
      .hysteresis = static_cast<int>(c.hysteresis),
      .consecutive_hysteresis = c.consecutive_hysteresis,
      .minimum = c.min_loss_scale,
      .dynamic = dynamic};
}

}  // namespace reknit
