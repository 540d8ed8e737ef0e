// A collective carried out by one thread that sees every rank's tensors.
#pragma once

#include "reknit/comm/operation.h"

#include <vector>

namespace reknit {

/// Carries out one operation for all ranks with ATen operations on the current streams
/// of the tensors' devices; `ranks[r]` is rank r's side of it and all agree. Sums go
/// in rank order, 16-bit ones in fp32; the same bits on every rank.
void perform(const std::vector<Operation>& ranks);

}  // namespace reknit
