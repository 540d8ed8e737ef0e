// A sharding strategy is a placement: how many ranks each kind of state is cut over.
#pragma once

#include "reknit/comm/communicator.h"

#include <memory>

namespace reknit {

/// ZeRO 0 to 3 and MiCS in one value. Inside a shard group of `shard_size` ranks
/// weights, gradients and optimizer state are either whole (1) or cut in
/// `shard_size`; the shard groups are replicas of each other.
struct Placement {
  int zero_stage = 3;
  int shard_size = 1;  ///< the world, or MiCS's group size

  int weight_shards() const { return zero_stage >= 3 ? shard_size : 1; }
  int gradient_shards() const { return zero_stage >= 2 ? shard_size : 1; }
  int optimizer_shards() const { return zero_stage >= 1 ? shard_size : 1; }
};

/// The groups a store talks to. Gathers and reductions have a communicator each, so
/// that the one never waits behind the other.
struct StoreComms {
  std::shared_ptr<Communicator> world;    ///< norms, decisions
  std::shared_ptr<Communicator> gather;   ///< shard ranks: parameters
  std::shared_ptr<Communicator> reduce;   ///< shard ranks: gradients
  std::shared_ptr<Communicator> replica;  ///< replica ranks: gradients at the boundary; may be null

  /// Collective over `world`: shard groups are consecutive runs of `shard_size` ranks.
  /// UsageError unless shard_size divides the world.
  static StoreComms over(std::shared_ptr<Communicator> world, int shard_size);
  void abort(const std::string& reason) noexcept;
};

}  // namespace reknit
