// Which collectives a store starts in one training step, and where their bytes go: pure
// arithmetic, the counterpart of Communicator::counts().
#pragma once

#include "reknit/store/sizes.h"

#include <vector>

namespace reknit {

struct StepTraffic {
  using Entry = CommCounts::Entry;

  Entry gathers;     ///< weights for forward and backward
  Entry reductions;  ///< gradients into their shards, each micro-batch
  Entry boundary;    ///< gradients over all ranks that are not summed yet, once a step
  Entry publishing;  ///< replicated weights after the update, once a step

  Entry total() const;
  StepTraffic& operator+=(const StepTraffic& other);
};

/// Ranks in equal consecutive runs on equal nodes.
struct Topology {
  int ranks = 1;
  int nodes = 1;
  int per_node() const { return ranks / nodes; }
};

/// What decides the collectives of a store besides its layouts.
struct TrafficRules {
  Placement placement;
  std::optional<at::ScalarType> reduce_dtype;  ///< as in StoreSettings
  Topology topology;
  int64_t micro_batches = 1;
};

/// One step of forwards and backwards, as the rank counts it that receives most from other
/// nodes. `kept` as in slot_demand. The norm of the gradient, a few bytes, is left out.
StepTraffic step_traffic(const std::vector<GroupLayout>& layouts, const std::vector<bool>& kept,
                         const TrafficRules& rules);

}  // namespace reknit
