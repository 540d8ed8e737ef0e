// A sharding strategy is a placement: how many ranks each kind of state is cut over.
//
// Shard groups are consecutive runs of ranks. Inside a group that spans whole nodes, and
// more than one, shards are numbered local-major: 4 ranks on 2 nodes,
//
//   rank   0 (node 0)   1 (node 0)   2 (node 1)   3 (node 1)
//   shard  0            2            1            3
//
// so that a gather in two stages, across nodes among equal local ranks (0 1 | 2 3) and
// then inside each node, fills the flat buffer in order with nothing to rearrange. A flat
// gather and the reductions use the same numbers: both give the same bits.
#pragma once

#include "reknit/base/mutant.h"
#include "reknit/base/rank.h"
#include "reknit/comm/communicator.h"

#include <memory>

namespace reknit {

/// ZeRO 0 to 3 and MiCS in one value. Inside a shard group of `shard_size` ranks
/// weights, gradients and optimizer state are either whole (1) or cut in
/// `shard_size`; the shard groups are replicas of each other.
struct Placement {
  int zero_stage = 3;
  int shard_size = 1;         ///< the world, or MiCS's group size
  bool hierarchical = false;  ///< weights are gathered across nodes first, then inside each
  /// Ranks that hold a second copy of the weights between them (ZeRO++'s hpZ): cut from the
  /// first gather after an update, it serves the later ones. 1: none.
  int secondary_size = 1;

  int weight_shards() const { return zero_stage >= 3 ? shard_size : 1; }
  int gradient_shards() const { return zero_stage >= 2 ? shard_size : 1; }
  int optimizer_shards() const { return zero_stage >= 1 ? shard_size : 1; }
};

/// The groups a store talks to. Gathers and reductions have a communicator each, so
/// that the one never waits behind the other.
struct StoreComms {
  std::shared_ptr<Communicator> world;    ///< norms, decisions
  std::shared_ptr<Communicator> gather;   ///< shard ranks, by shard: parameters
  std::shared_ptr<Communicator> reduce;   ///< shard ranks, by shard: gradients
  std::shared_ptr<Communicator> replica;  ///< replica ranks: gradients at the boundary; may be null
  std::shared_ptr<Communicator> across;   ///< equal local ranks of the group's nodes; null: flat
  std::shared_ptr<Communicator> inside;   ///< the group's ranks on this node; null: flat
  std::shared_ptr<Communicator> secondary;  ///< the ranks of a second copy; null: none
  std::vector<int> shard_ranks;             ///< this shard group's ranks of the world, by shard

  /// Collective over `world`, whose options say the nodes. UsageError unless shard_size
  /// divides the world and secondary_size the shard group, and for `hierarchical` unless a
  /// shard group is two whole nodes or more.
  static StoreComms over(std::shared_ptr<Communicator> world, const Placement& placement);
  /// The same for a flat placement.
  static StoreComms over(std::shared_ptr<Communicator> world, int shard_size);
  void abort(const std::string& reason) noexcept;
  /// What this rank has taken part in, on all groups but the world.
  CommCounts counts() const;

  /// As Communicator::all_gather over the shard ranks, in two stages where there are two:
  /// the second is ordered after the first on `stream`. A backend that moves data on the
  /// host blocks it until the first is done.
  template <class Owner>
  Pending<Owner> all_gather(Owner owner, const std::vector<GatherPair>& pairs,
                            const Stream& stream) const {
    if (!across) {
      return gather->all_gather(std::move(owner), pairs, stream);
    }
    const Stages stages = stages_of(pairs);
    owner = across->all_gather(std::move(owner), stages.across, stream)
                .wait(REKNIT_MUTANT(second_stage_does_not_wait) ? this_rank().copy : stream);
    return inside->all_gather(std::move(owner), stages.inside, stream);
  }

 private:
  struct Stages {
    std::vector<GatherPair> across;  ///< into this local rank's slice of the buffer
    std::vector<GatherPair> inside;  ///< the slices, in place
  };
  Stages stages_of(const std::vector<GatherPair>& pairs) const;
  void split_stages(Communicator& all, int first);
};

/// The ranks of the shard group that begins at `first`, by shard; `nodes` as in CommOptions.
std::vector<int> shard_order(const std::vector<int>& nodes, int world, int first, int shard_size);

}  // namespace reknit
