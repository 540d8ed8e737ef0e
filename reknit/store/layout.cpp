#include "reknit/store/layout.h"

#include "reknit/base/round_up.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

namespace reknit {
namespace {

constexpr int64_t kMaxNumel = int64_t{1} << 56;  // sums, bytes and bits of it fit 64 bits

int64_t align_elements(at::ScalarType dtype) {
  return kAlignBytes / static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t count_elements(const ParamSpec& param) {
  int64_t numel = 1;
  for (const int64_t size : param.shape) {
    require<UsageError>(size >= 0, "parameter ", param.name, " has a dimension of ", size);
    require<UsageError>(size == 0 || numel <= kMaxNumel / size, "parameter ", param.name,
                        " has more than 2^56 elements");
    numel *= size;
  }
  return numel;
}

int find_or_add(std::vector<SegmentLayout>& segments, const SegmentLayout& wanted) {
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].dtype == wanted.dtype && segments[i].trainable == wanted.trainable &&
        segments[i].persistent == wanted.persistent) {
      return static_cast<int>(i);
    }
  }
  segments.push_back(wanted);
  return static_cast<int>(segments.size()) - 1;
}

}  // namespace

Extent intersect(Extent a, Extent b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

int64_t SegmentLayout::bytes() const {
  return padded * static_cast<int64_t>(c10::elementSize(dtype));
}

GroupLayout GroupLayout::of(const GroupSpec& spec, const LayoutRules& rules) {
  require<UsageError>(rules.num_shards > 0, "a layout needs at least one shard, got ",
                      rules.num_shards);
  GroupLayout layout;
  for (size_t i = 0; i < spec.params.size(); ++i) {
    const ParamSpec& param = spec.params[i];
    const int64_t numel = count_elements(param);
    SegmentLayout key;
    key.dtype = param.dtype.value_or(rules.dtype);
    key.trainable = param.trainable;
    key.persistent = numel < rules.persistence_threshold &&
                     numel <= rules.persistence_limit - layout.persistent_numel;
    layout.persistent_numel += key.persistent ? numel : 0;
    key.num_shards = rules.num_shards;
    const int index = find_or_add(layout.segments, key);
    SegmentLayout& segment = layout.segments[index];
    const int64_t offset = round_up(segment.padded, align_elements(key.dtype));
    segment.padded = offset + numel;
    segment.params.push_back(static_cast<int>(i));
    layout.places.push_back({index, offset, numel});
  }
  for (SegmentLayout& segment : layout.segments) {
    segment.padded = round_up(segment.padded, align_elements(segment.dtype) * segment.num_shards);
  }
  return layout;
}

}  // namespace reknit
