// How much memory a store takes on each rank, and in which slots: pure arithmetic that
// follows from layouts and placement. The store allocates by it; a plan adds it up.
#pragma once

#include "reknit/store/layout.h"
#include "reknit/store/placement.h"

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace reknit {

struct StoreSettings;

/// How a store with these settings lays out its groups.
LayoutRules layout_rules(const StoreSettings& settings);
/// The layouts of a model's groups in order: `rules.persistence_limit` is for all of them.
std::vector<GroupLayout> lay_out(const std::vector<GroupSpec>& groups, LayoutRules rules);

/// One segment on one rank, in elements; the same on every rank.
struct SegmentSizes {
  bool resident = false;         ///< whole on every rank: never gathered
  int64_t weight_numel = 0;      ///< of the model's dtype: the shard, or all of it
  int64_t secondary_numel = 0;   ///< of the same: the rank's part of a second copy
  int64_t gradient_numel = 0;    ///< fp32; 0: frozen
  int64_t optimizer_numel = 0;   ///< what this rank updates: masters, each moment; 0: frozen
  bool own_master = false;       ///< fp32 masters beside the weights; false: weights are fp32
  int64_t slot_offset = -1;      ///< bytes, of a gathered segment in its group's slot
  int64_t gradient_offset = -1;  ///< bytes, of a trainable segment in its gradient slot
  int64_t wire_offset = -1;      ///< bytes, of one that is reduced in another dtype
};

struct GroupSizes {
  std::vector<SegmentSizes> segments;
  int64_t slot_bytes = 0;      ///< gathered weights; 0: everything is resident
  int64_t gradient_bytes = 0;  ///< a full gradient; 0: nothing is trainable
  int64_t wire_bytes = 0;      ///< the same in `reduce_dtype`; 0: reduced as it is

  /// `reduce_dtype` as in StoreSettings.
  static GroupSizes of(const GroupLayout& layout, const Placement& placement,
                       std::optional<at::ScalarType> reduce_dtype = {});
};

/// Slots that may be in use at once, by the bytes of their class.
using SlotDemand = std::map<int64_t, int>;

/// What a store with these groups needs. `kept[g]`: group g stays gathered from its first to
/// its last use in a pass, and its gradient slot open.
SlotDemand slot_demand(const std::vector<GroupSizes>& groups, const std::vector<bool>& kept,
                       int prefetch_depth);

/// True for each group that a forward order names more than once.
std::vector<bool> kept_groups(const std::vector<GroupId>& forward_order, size_t num_groups);

}  // namespace reknit
