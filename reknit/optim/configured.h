// Optimizer, schedule and loss scale as a DeepSpeed config asks for them.
#pragma once

#include "reknit/config/deepspeed.h"
#include "reknit/optim/loss_scaler.h"
#include "reknit/optim/optimizer.h"
#include "reknit/optim/schedule.h"

namespace reknit {

/// From a config that was read without errors. Without a type: AdamW.
OptimizerSettings optimizer_settings(const OptimizerConfig& config);

/// Without a type: a constant rate. `total_updates` where the config has no total.
Schedule schedule_of(const SchedulerConfig& config, int64_t total_updates);

LossScalerSettings scaler_settings(const Fp16Config& config);

}  // namespace reknit
