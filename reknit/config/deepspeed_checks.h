// What must hold between the keys of a config. Each adds its findings.
#pragma once

#include "reknit/config/deepspeed.h"

namespace reknit {

/// fp16 against bf16, param_dtype against both, the constants of the loss scale.
void check_precision(const nlohmann::json& config, ConfigReading& reading);

/// MiCS against stage, ranks and nodes.
void check_zero(const RunShape& shape, ConfigReading& reading);

/// The type in lower case; adam_w_mode against it.
void check_optimizer(const nlohmann::json& config, ConfigReading& reading);

/// The parameters that the schedule's type reads; what it cannot do without.
void check_scheduler(const nlohmann::json& config, ConfigReading& reading);

}  // namespace reknit
