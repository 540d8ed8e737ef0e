#include "reknit/store/sizes.h"

#include "reknit/store/store.h"

#include <algorithm>

namespace reknit {

LayoutRules layout_rules(const StoreSettings& settings) {
  return {settings.dtype, settings.placement.shard_size, settings.persistence_threshold,
          settings.persistence_limit};
}

std::vector<GroupLayout> lay_out(const std::vector<GroupSpec>& groups, LayoutRules rules) {
  std::vector<GroupLayout> layouts;
  for (const GroupSpec& group : groups) {
    layouts.push_back(GroupLayout::of(group, rules));
    rules.persistence_limit -= layouts.back().persistent_numel;
  }
  return layouts;
}

GroupSizes GroupSizes::of(const GroupLayout& layout, const Placement& placement,
                          std::optional<at::ScalarType> reduce_dtype) {
  GroupSizes sizes;
  bool on_the_wire = false;
  for (const SegmentLayout& segment : layout.segments) {
    SegmentSizes held;
    held.resident = segment.persistent || placement.weight_shards() == 1;
    held.weight_numel = held.resident ? segment.padded : segment.shard_numel();
    if (!held.resident) {
      held.slot_offset = sizes.slot_bytes;
      sizes.slot_bytes += segment.bytes();
      held.secondary_numel =
          placement.secondary_size > 1 ? segment.padded / placement.secondary_size : 0;
    }
    if (segment.trainable) {
      held.gradient_offset = sizes.gradient_bytes;
      sizes.gradient_bytes += segment.bytes();
      const at::ScalarType sent = reduce_dtype.value_or(segment.dtype);
      held.wire_offset = sizes.wire_bytes;
      sizes.wire_bytes += segment.padded * static_cast<int64_t>(c10::elementSize(sent));
      on_the_wire = on_the_wire || sent != segment.dtype;
      held.gradient_numel = segment.padded / placement.gradient_shards();
      held.optimizer_numel = segment.padded / placement.optimizer_shards();
      held.own_master = segment.dtype != at::kFloat;
    }
    sizes.segments.push_back(held);
  }
  if (!on_the_wire || placement.gradient_shards() == 1) {
    sizes.wire_bytes = 0;
  }
  return sizes;
}

SlotDemand slot_demand(const std::vector<GroupSizes>& groups, const std::vector<bool>& kept,
                       int prefetch_depth) {
  struct Demand {
    int groups = 0, kept = 0;
  };
  std::map<int64_t, Demand> weights;
  std::map<int64_t, Demand> gradients;
  std::map<int64_t, Demand> wires;
  for (size_t g = 0; g < groups.size(); ++g) {
    Demand& weight = weights[SlotPool::class_of(groups[g].slot_bytes)];
    weight.groups += 1;
    weight.kept += kept[g];
    Demand& gradient = gradients[SlotPool::class_of(groups[g].gradient_bytes)];
    gradient.groups += 1;
    gradient.kept += kept[g];
    wires[SlotPool::class_of(groups[g].wire_bytes)].groups += 1;
  }
  SlotDemand wanted;
  for (const auto& [bytes, demand] : weights) {
    wanted[bytes] += std::min(demand.groups, demand.kept + prefetch_depth + 1);
  }
  for (const auto& [bytes, demand] : gradients) {
    wanted[bytes] += std::min(demand.groups, demand.kept + 2);
  }
  for (const auto& [bytes, demand] : wires) {
    wanted[bytes] += std::min(demand.groups, 2);
  }
  wanted.erase(0);
  return wanted;
}

std::vector<bool> kept_groups(const std::vector<GroupId>& forward_order, size_t num_groups) {
  std::vector<int> uses(num_groups, 0);
  for (const GroupId id : forward_order) {
    ++uses.at(id);
  }
  std::vector<bool> kept(num_groups);
  for (size_t g = 0; g < num_groups; ++g) {
    kept[g] = uses[g] > 1;
  }
  return kept;
}

}  // namespace reknit
