#include "reknit/store/placement.h"

#include "reknit/base/error.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace reknit {
namespace {

/// 0 where nodes are not equal runs of consecutive ranks.
int ranks_per_node(const std::vector<int>& nodes, int world) {
  if (nodes.empty()) {
    return world;
  }
  const int local = static_cast<int>(std::count(nodes.begin(), nodes.end(), nodes.front()));
  for (int rank = 0; rank < world; ++rank) {
    if (world % local != 0 || nodes[rank] != nodes[rank / local * local] ||
        (rank >= local && nodes[rank] == nodes[rank - local])) {
      return 0;
    }
  }
  return local;
}

bool spans_whole_nodes(int shard_size, int local) {
  return local > 0 && shard_size > local && shard_size % local == 0;
}

void require_hierarchy(int shard_size, int local) {
  if (!spans_whole_nodes(shard_size, local)) {
    throw UsageError(str("a hierarchical gather needs shard groups of two whole nodes or more: ",
                         shard_size, " ranks a group with ", local, " ranks a node"),
                     shard_size <= local ? "gather flat: the group is inside one node"
                                         : "make the group a multiple of the ranks a node");
  }
}

}  // namespace

std::vector<int> shard_order(const std::vector<int>& nodes, int world, int first, int shard_size) {
  const int local = ranks_per_node(nodes, world);
  const int num_nodes =
      spans_whole_nodes(shard_size, local) && !REKNIT_MUTANT(number_shards_by_rank)
          ? shard_size / local
          : 1;
  std::vector<int> order;
  for (int shard = 0; shard < shard_size; ++shard) {
    const int node = shard % num_nodes;
    const int local_rank = shard / num_nodes;
    order.push_back(first + node * (shard_size / num_nodes) + local_rank);
  }
  return order;
}

StoreComms StoreComms::over(std::shared_ptr<Communicator> world, int shard_size) {
  return over(std::move(world), Placement{.shard_size = shard_size});
}

StoreComms StoreComms::over(std::shared_ptr<Communicator> world, const Placement& placement) {
  const int size = world->size();
  const int shard_size = placement.shard_size;
  require<UsageError>(shard_size > 0 && size % shard_size == 0, "a shard group of ", shard_size,
                      " ranks does not divide the world of ", size, " ranks");
  require<UsageError>(placement.secondary_size > 0 && shard_size % placement.secondary_size == 0,
                      "second copies over ", placement.secondary_size,
                      " ranks do not divide a shard group of ", shard_size);
  const std::vector<int>& nodes = world->options().nodes;
  const int first = world->rank() / shard_size * shard_size;
  StoreComms comms;
  comms.shard_ranks = shard_order(nodes, size, first, shard_size);
  comms.gather = world->split(comms.shard_ranks, "gather");
  comms.reduce = world->split(comms.shard_ranks, "reduce");
  if (shard_size < size) {
    std::vector<int> replicas;
    for (int group = 0; group < size; group += shard_size) {
      replicas.push_back(shard_order(nodes, size, group, shard_size)[comms.reduce->rank()]);
    }
    comms.replica = world->split(replicas, "replica");
  }
  if (placement.hierarchical) {
    comms.split_stages(*world, first);
  }
  if (placement.secondary_size > 1) {
    std::vector<int> neighbours(placement.secondary_size);
    std::iota(neighbours.begin(), neighbours.end(),
              world->rank() / placement.secondary_size * placement.secondary_size);
    comms.secondary = world->split(neighbours, "secondary");
  }
  comms.world = std::move(world);
  return comms;
}

void StoreComms::split_stages(Communicator& all, int first) {
  const auto shard_size = static_cast<int>(shard_ranks.size());
  const int local = ranks_per_node(all.options().nodes, all.size());
  require_hierarchy(shard_size, local);
  std::vector<int> same_place;
  std::vector<int> same_node;
  for (int rank = first; rank < first + shard_size; ++rank) {
    if (rank % local == all.rank() % local) {
      same_place.push_back(rank);
    }
    if (rank / local == all.rank() / local) {
      same_node.push_back(rank);
    }
  }
  across = all.split(same_place, "across");
  inside = all.split(same_node, "inside");
}

void StoreComms::abort(const std::string& reason) noexcept {
  for (const auto& comm : {gather, reduce, replica, across, inside, secondary, world}) {
    if (comm) {
      comm->abort(reason);
    }
  }
}

CommCounts StoreComms::counts() const {
  CommCounts sum;
  for (const auto& comm : {gather, reduce, replica, across, inside, secondary}) {
    if (comm) {
      sum += comm->counts();
    }
  }
  return sum;
}

// The buffer is one slice for each local rank; a slice is the shards of that local rank's
// ranks, node by node.
StoreComms::Stages StoreComms::stages_of(const std::vector<GatherPair>& pairs) const {
  Stages stages;
  const int slices = inside->size();
  const int sent =
      REKNIT_MUTANT(second_stage_sends_another_slice) ? across->rank() % slices : inside->rank();
  for (const GatherPair& pair : pairs) {
    const int64_t length = pair.full.numel() / slices;
    stages.across.push_back({pair.full.narrow(0, inside->rank() * length, length), pair.shard});
    stages.inside.push_back({pair.full, pair.full.narrow(0, sent * length, length)});
  }
  return stages;
}

}  // namespace reknit
