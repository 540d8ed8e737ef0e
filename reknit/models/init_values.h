// The values that a new model starts with.
#pragma once

#include "reknit/models/name_map.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reknit {

/// The first values of the piece's tensor, fp32, shaped as a folder stores it. They depend
/// on the seed, the tensor's name and the place in it alone, so `reknit init` and
/// init_model make the same model, on any number of ranks.
at::Tensor init_values(const ModelSpec& spec, const ParamSpec& param, const NamePiece& piece,
                       uint64_t seed);

}  // namespace reknit
