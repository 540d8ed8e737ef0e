#include "reknit/store/traffic.h"

#include <algorithm>

namespace reknit {
namespace {

using Entry = CommCounts::Entry;

/// The ranks first, first + stride, ..: one group.
struct Members {
  int first = 0;
  int stride = 1;
  int count = 1;
};

/// Of a rank's group: how many others are on its node, and its size.
struct Peers {
  int near = 0;
  int size = 1;
};

/// Of the rank that has the fewest of its group on its node; `group_of(rank)` -> Members.
template <class GroupOf>
Peers most_spread(const Topology& topology, const GroupOf& group_of) {
  Peers most;
  for (int rank = 0; rank < topology.ranks; ++rank) {
    const Members members = group_of(rank);
    Peers peers{0, members.count};
    for (int i = 0; i < members.count; ++i) {
      const int other = members.first + i * members.stride;
      peers.near += other != rank && other / topology.per_node() == rank / topology.per_node();
    }
    if (rank == 0 || peers.near < most.near) {
      most = peers;
    }
  }
  return most;
}

/// The groups that a store talks to, see StoreComms.
struct Groups {
  Peers shards, replicas, across, inside, secondary;

  Groups(const Placement& placement, const Topology& topology) {
    const int size = placement.shard_size;
    const int local = topology.per_node();
    const auto run_of = [](int rank, int length) {
      return Members{rank / length * length, 1, length};
    };
    shards = most_spread(topology, [&](int rank) { return run_of(rank, size); });
    replicas = most_spread(topology, [&](int rank) {
      return Members{rank % size, size, topology.ranks / size};
    });
    secondary =
        most_spread(topology, [&](int rank) { return run_of(rank, placement.secondary_size); });
    if (placement.hierarchical) {
      across = most_spread(topology, [&](int rank) {
        return Members{rank / size * size + rank % local, local, size / local};
      });
      inside = most_spread(topology, [&](int rank) { return run_of(rank, local); });
    }
  }
};

enum class Kind { kGather, kReduceScatter, kAllReduce };

/// As comm/topology.h counts.
Entry among(const Peers& peers, Kind kind, int64_t bytes) {
  const int64_t moved = kind == Kind::kAllReduce ? 2 * bytes : bytes;
  return {.count = 1,
          .bytes = bytes,
          .inside = moved * peers.near / peers.size,
          .across = moved * (peers.size - 1 - peers.near) / peers.size};
}

/// As StoreComms::all_gather.
Entry gather(const Groups& groups, const Placement& placement, int64_t bytes) {
  if (!placement.hierarchical) {
    return among(groups.shards, Kind::kGather, bytes);
  }
  Entry stages = among(groups.across, Kind::kGather, bytes / groups.inside.size);
  stages += among(groups.inside, Kind::kGather, bytes);
  return stages;
}

void add(Entry& sum, const Entry& one, int64_t times) {
  sum += {one.count * times, one.bytes * times, one.inside * times, one.across * times};
}

/// Bytes of the segments that satisfy `wanted(layout, sizes)`, in `width` bytes an element;
/// 0: of their own dtype.
template <class Wanted>
int64_t bytes_of(const std::vector<GroupLayout>& layouts, const Placement& placement, int64_t width,
                 const Wanted& wanted) {
  int64_t bytes = 0;
  for (const GroupLayout& layout : layouts) {
    const GroupSizes sizes = GroupSizes::of(layout, placement);
    for (size_t i = 0; i < layout.segments.size(); ++i) {
      if (wanted(layout.segments[i], sizes.segments[i])) {
        bytes += width == 0 ? layout.segments[i].bytes() : layout.segments[i].padded * width;
      }
    }
  }
  return bytes;
}

/// Every micro-batch.
void add_passes(const std::vector<GroupLayout>& layouts, const std::vector<bool>& kept,
                const TrafficRules& rules, const Groups& groups, StepTraffic& step) {
  const Placement& placement = rules.placement;
  for (size_t g = 0; g < layouts.size(); ++g) {
    const GroupSizes sizes = GroupSizes::of(layouts[g], placement, rules.reduce_dtype);
    if (sizes.slot_bytes > 0) {
      const int64_t times = kept[g] ? 1 : 2 * rules.micro_batches;
      const bool second = placement.secondary_size > 1;
      add(step.gathers, gather(groups, placement, sizes.slot_bytes), second ? 1 : times);
      add(step.gathers, among(groups.secondary, Kind::kGather, sizes.slot_bytes),
          second ? times - 1 : 0);
    }
    if (sizes.gradient_bytes > 0 && placement.gradient_shards() > 1) {
      const int64_t bytes = sizes.wire_bytes > 0 ? sizes.wire_bytes : sizes.gradient_bytes;
      add(step.reductions, among(groups.shards, Kind::kReduceScatter, bytes), rules.micro_batches);
    }
  }
}

/// Once a step.
void add_boundary(const std::vector<GroupLayout>& layouts, const TrafficRules& rules,
                  const Groups& groups, StepTraffic& step) {
  const Placement& placement = rules.placement;
  const auto width =
      static_cast<int64_t>(c10::elementSize(rules.reduce_dtype.value_or(at::kFloat)));
  const int64_t gradients = bytes_of(
      layouts, placement, width, [](const auto& layout, const auto&) { return layout.trainable; });
  if (gradients > 0 && placement.gradient_shards() == 1 && placement.shard_size > 1) {
    const bool cut = placement.optimizer_shards() > 1;
    step.boundary += among(groups.shards, cut ? Kind::kReduceScatter : Kind::kAllReduce, gradients);
  }
  if (gradients > 0 && placement.shard_size < rules.topology.ranks) {
    step.boundary +=
        among(groups.replicas, Kind::kAllReduce, gradients / placement.optimizer_shards());
  }
  const int64_t replicated = bytes_of(
      layouts, placement, 0,
      [](const auto& layout, const auto& sizes) { return layout.trainable && sizes.resident; });
  if (replicated > 0 && placement.optimizer_shards() > 1) {
    step.publishing += gather(groups, placement, replicated);
  }
}

}  // namespace

CommCounts::Entry StepTraffic::total() const {
  Entry all = gathers;
  all += reductions;
  all += boundary;
  all += publishing;
  return all;
}

StepTraffic& StepTraffic::operator+=(const StepTraffic& other) {
  gathers += other.gathers;
  reductions += other.reductions;
  boundary += other.boundary;
  publishing += other.publishing;
  return *this;
}

StepTraffic step_traffic(const std::vector<GroupLayout>& layouts, const std::vector<bool>& kept,
                         const TrafficRules& rules) {
  const Groups groups(rules.placement, rules.topology);
  StepTraffic step;
  add_passes(layouts, kept, rules, groups, step);
  add_boundary(layouts, rules, groups, step);
  return step;
}

}  // namespace reknit
