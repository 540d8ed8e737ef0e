#include "reknit/rlhf/weight_average.h"

#include "reknit/engine/together.h"

#include <ATen/ATen.h>

namespace reknit {

WeightAverage::WeightAverage(Store& store, double beta) : store_(store), beta_(beta) {
  require<UsageError>(beta >= 0 && beta < 1, "a moving average with a decay of ", beta,
                      " (it must be at least 0 and below 1)");
  for (const OptimizerShard& shard : store_.shards()) {
    averages_.push_back(shard.master.clone());
  }
}

void WeightAverage::update() {
  const std::vector<OptimizerShard> shards = store_.shards();
  for (size_t i = 0; i < shards.size(); ++i) {
    averages_[i].mul_(beta_).add_(shards[i].master, 1.0 - beta_);
  }
}

void WeightAverage::write_model(Model& model, const HfFolder& source, at::ScalarType dtype,
                                const std::string& path, IfPresent if_present) {
  together(*store_.comms().world, [&] {
    store_.swap_masters(averages_);
    export_model(model, source, dtype, path, if_present);
    store_.swap_masters(averages_);
  });
}

}  // namespace reknit
