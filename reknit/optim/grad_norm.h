// The global gradient norm, and who spoilt it.
#pragma once

#include "reknit/store/store.h"

#include <string>
#include <vector>

namespace reknit {

/// L2 norm over all trainable parameters of the model, each counted once, the same bits
/// on every rank. Sums in fp64; inf or NaN anywhere stays visible. Collective over all
/// ranks of the store; blocks the host.
double global_grad_norm(Store& store, const std::vector<OptimizerShard>& shards);

/// A parameter whose gradient holds an inf or a NaN.
struct Nonfinite {
  std::string param;
  std::string kind;  ///< "inf" or "NaN"
};
/// The first one in model order; an empty name if there is none. Collective over the
/// shard ranks; slow, for reports.
Nonfinite first_nonfinite(Store& store, const std::vector<OptimizerShard>& shards);

}  // namespace reknit
