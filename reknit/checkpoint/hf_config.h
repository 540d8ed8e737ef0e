// The config.json of a model's folder that is written, whoever writes it.
#pragma once

#include <c10/core/ScalarType.h>

#include <nlohmann/json_fwd.hpp>

#include "reknit/config/deepspeed.h"
#include "reknit/models/spec.h"

namespace reknit {

/// The dtype that weights of this precision have.
at::ScalarType scalar_type(Precision precision);

/// `config`, which `spec` was read from, with what a folder of its weights in `dtype` says: the
/// class, the dtype, and one label if there is a value head. UsageError for a dtype that no
/// model is written in.
nlohmann::json written_config(nlohmann::json config, const ModelSpec& spec, at::ScalarType dtype);

}  // namespace reknit
