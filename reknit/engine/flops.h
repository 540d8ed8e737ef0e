// How much arithmetic a model asks for.
#pragma once

#include "reknit/models/decoder.h"

#include <cstdint>

namespace reknit {

/// Floating-point operations of a forward of one sequence of `length` tokens: two for each
/// weight of a matrix product and token, and 4 A D for each pair of tokens of a block (the
/// whole square of attention, as Megatron counts it).
double forward_flops(const ModelSpec& spec, int64_t length);

/// Of a training step on one sequence: a forward, a backward of twice that, and the forward
/// of the blocks that are recomputed.
double training_flops(const ModelSpec& spec, int64_t length, const Checkpointing& checkpointing);

}  // namespace reknit
