// A collective carried out by one thread that sees every rank's tensors.
#pragma once

#include "reknit/comm/operation.h"

#include <vector>

namespace reknit {

/// Carries out one operation for all ranks with ATen operations on the current streams
/// of the tensors' devices; `ranks[r]` is rank r's side of it and all agree. Sums go
/// in rank order, 16-bit ones in fp32; the same bits on every rank.
void perform(const std::vector<Operation>& ranks);

/// The reduction of equal tensors, in their order, on `device`; 16-bit ones as fp32.
at::Tensor reduce_in_order(const std::vector<at::Tensor>& inputs, ReduceOp op, at::Device device);

}  // namespace reknit
