// Where every parameter of a group lies: pure arithmetic on integers.
//
//   segment (one dtype, trainable or frozen, sharded or persistent), num_shards = 3
//   |<------------------------- padded -------------------------->|
//   | p0       |pad| p1  |pad| p2            |       padding      |
//   |     shard 0        |      shard 1      |      shard 2       |
//
// Offsets count elements and are the same for weight, gradient, master and moments.
// Every parameter starts on a multiple of kAlignBytes, and so does every shard.
#pragma once

#include "reknit/store/param_ref.h"

#include <cstdint>
#include <vector>

namespace reknit {

constexpr int64_t kAlignBytes = 128;

/// What decides a layout besides the parameters themselves.
struct LayoutRules {
  at::ScalarType dtype = at::kFloat;  ///< of parameters without their own
  int num_shards = 1;
  /// Parameters with fewer elements are persistent: replicated, never gathered.
  int64_t persistence_threshold = 0;
  /// Elements that persistent parameters may have together; one that would exceed it is
  /// sharded like the others.
  int64_t persistence_limit = INT64_MAX;
};

/// A parameter inside its segment.
struct ParamPlace {
  int segment = 0;
  int64_t offset = 0;  ///< elements
  int64_t numel = 0;
};

/// A range of elements; empty when begin >= end.
struct Extent {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end > begin ? end - begin : 0; }
};
Extent intersect(Extent a, Extent b);

/// One flat buffer and its equal shards.
struct SegmentLayout {
  at::ScalarType dtype = at::kFloat;
  bool trainable = true;
  bool persistent = false;
  int num_shards = 1;
  int64_t padded = 0;       ///< elements, a multiple of num_shards
  std::vector<int> params;  ///< indices into the group, in order

  int64_t shard_numel() const { return padded / num_shards; }
  Extent shard(int index) const { return {index * shard_numel(), (index + 1) * shard_numel()}; }
  int64_t bytes() const;
};

/// A group's segments and the place of each of its parameters.
struct GroupLayout {
  std::vector<SegmentLayout> segments;
  std::vector<ParamPlace> places;
  int64_t persistent_numel = 0;  ///< of the persistent parameters, without padding

  /// Throws UsageError for a negative dimension, more than 2^56 elements or no shards. Empty
  /// groups, empty parameters and parameters smaller than the number of shards are all legal.
  static GroupLayout of(const GroupSpec& spec, const LayoutRules& rules);
};

}  // namespace reknit
