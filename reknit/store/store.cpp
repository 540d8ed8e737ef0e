#include "reknit/store/store.h"

#include "reknit/base/mutant.h"
#include "reknit/store/sizes.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace reknit {

Store::Store(StoreSettings settings, StoreComms comms, SlotPool& pool)
    : settings_(std::move(settings)), comms_(std::move(comms)), pool_(pool) {
  require<UsageError>(settings_.placement.shard_size == comms_.reduce->size(), "the placement of ",
                      settings_.name, " cuts over ", settings_.placement.shard_size,
                      " ranks, its communicator has ", comms_.reduce->size());
}

Store::~Store() = default;

GroupId Store::add(GroupSpec spec) {
  REKNIT_INVARIANT(!sealed_, "group ", spec.name, " was added to the sealed store ",
                   settings_.name);
  auto group = std::make_unique<Group>();
  if (!settings_.training) {
    for (ParamSpec& param : spec.params) {
      param.trainable = false;
    }
  }
  group->state = std::make_shared<GroupState>(str(settings_.name, "/", spec.name));
  group->spec = std::move(spec);
  groups_.push_back(std::move(group));
  order_.push_back(num_groups() - 1);
  return num_groups() - 1;
}

void Store::set_order(std::vector<GroupId> forward_order) {
  const std::vector<bool> kept = kept_groups(forward_order, groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g]->keep = kept[g];
  }
  order_ = std::move(forward_order);
}

void Store::seal() {
  REKNIT_INVARIANT(!sealed_, "the store ", settings_.name, " was sealed twice");
  std::vector<GroupSpec> specs;
  for (const auto& group : groups_) {
    specs.push_back(group->spec);
  }
  std::vector<GroupLayout> layouts = lay_out(specs, layout_rules(settings_));
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g]->layout = std::move(layouts[g]);
    allocate(*groups_[g]);
  }
  require_slots();
  sealed_ = true;
}

at::Tensor Store::new_buffer(int64_t numel, at::ScalarType dtype) const {
  const auto device = this_rank().device;
  if (!settings_.allocator || numel == 0) {
    return at::zeros({numel}, at::TensorOptions(dtype).device(device));
  }
  const auto bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  return settings_.allocator(bytes).view(dtype).zero_();
}

void Store::allocate(Group& group) {
  const Placement& placement = settings_.placement;
  const GroupSizes sizes = GroupSizes::of(group.layout, placement, settings_.reduce_dtype);
  group.slot_bytes = sizes.slot_bytes;
  group.gradient_bytes = sizes.gradient_bytes;
  group.wire_bytes = sizes.wire_bytes;
  for (size_t i = 0; i < sizes.segments.size(); ++i) {
    const SegmentLayout& layout = group.layout.segments[i];
    const SegmentSizes& size = sizes.segments[i];
    Segment segment;
    segment.resident = size.resident;
    segment.slot_offset = size.slot_offset;
    segment.gradient_offset = size.gradient_offset;
    segment.wire_offset = size.wire_offset;
    segment.weight = new_buffer(size.weight_numel, layout.dtype);
    if (size.secondary_numel > 0) {
      segment.secondary = new_buffer(size.secondary_numel, layout.dtype);
    }
    if (layout.trainable) {
      segment.grad = new_buffer(size.gradient_numel, at::kFloat);
      const bool inside = size.resident && placement.optimizer_shards() > 1;
      const int64_t skip = inside ? layout.shard(shard_index()).begin : 0;
      segment.master = size.own_master ? at::zeros({size.optimizer_numel}, segment.grad.options())
                                       : segment.weight.narrow(0, skip, size.optimizer_numel);
    }
    group.segments.push_back(std::move(segment));
  }
  if (group.slot_bytes == 0) {
    group.state->make_resident();
  }
}

void Store::require_slots() {
  std::vector<GroupSizes> sizes;
  std::vector<bool> kept;
  for (const auto& group : groups_) {
    sizes.push_back(GroupSizes::of(group->layout, settings_.placement, settings_.reduce_dtype));
    kept.push_back(group->keep);
  }
  for (const auto& [bytes, count] : slot_demand(sizes, kept, settings_.prefetch_depth)) {
    pool_.require(bytes, count);
  }
}

void Store::write(GroupId id, int param, int64_t offset, const at::Tensor& values) {
  require_writable("a write");
  Group& group = *groups_.at(id);
  require<StateError>(group.state->weights() == WeightState::kSharded ||
                          (group.slot_bytes == 0 && group.state->readers() == 0),
                      "parameter ", group.spec.params.at(param).name,
                      " was written while its group is gathered");
  const ParamPlace& place = group.layout.places.at(param);
  REKNIT_INVARIANT(offset >= 0 && offset + values.numel() <= place.numel, "elements ", offset,
                   " to ", offset + values.numel(), " of parameter ", group.spec.params[param].name,
                   " with ", place.numel);
  Segment& segment = group.segments[place.segment];
  const SegmentLayout& layout = group.layout.segments[place.segment];
  const Extent source{place.offset + offset, place.offset + offset + values.numel()};
  const auto copy_overlap = [&](const at::Tensor& target, Extent held) {
    const Extent both = intersect(source, held);
    if (both.size() > 0) {
      target.narrow(0, both.begin - held.begin, both.size())
          .copy_(values.reshape(-1).narrow(0, both.begin - source.begin, both.size()));
    }
  };
  copy_overlap(segment.weight,
               segment.resident ? Extent{0, layout.padded} : layout.shard(shard_index()));
  if (segment.master.defined() && layout.dtype != at::kFloat) {
    copy_overlap(segment.master, settings_.placement.optimizer_shards() == 1
                                     ? Extent{0, layout.padded}
                                     : layout.shard(shard_index()));
  }
  if (!REKNIT_MUTANT(secondary_outlives_a_write)) {
    group.secondary_version = 0;
  }
  if (!REKNIT_MUTANT(write_unseen_by_gathers)) {
    weights_written_.record(this_rank().compute);
  }
}

at::Tensor Store::read_full(GroupId id, int param) {
  at::Tensor copy;
  {
    const Full weights = full(id, Phase::kSave);
    copy = weights[param].read().clone();
  }
  finish_pass();
  return copy;
}

Edit Store::edit(GroupId id, int param, int owner) {
  require_writable("an edit");
  require<UsageError>(owner >= 0 && owner < comms_.world->size(), "an edit of parameter ",
                      spec(id).params.at(param).name, " names rank ", owner, " as owner of ",
                      comms_.world->size());
  return Edit(this, id, param, owner, read_full(id, param));
}

Edit::Edit(Edit&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      group_(other.group_),
      param_(other.param_),
      owner_(other.owner_),
      value_(std::move(other.value_)) {}

Edit::~Edit() {
  if (store_ != nullptr) {
    Store::Group& group = *store_->groups_[group_];
    store_->poison(group, str("the edit of parameter ", group.spec.params[param_].name,
                              " was dropped without commit()"));
  }
}

void Edit::commit() && {
  Store* store = std::exchange(store_, nullptr);
  const auto& stream = this_rank().compute;
  const auto values = store->or_poison(
      [&] { return store->comms_.world->broadcast({value_}, owner_, stream).wait(stream); });
  store->write(group_, param_, 0, values.front());
  store->groups_[group_]->state->raise_version();
}

int64_t Store::shard_bytes() const {
  int64_t bytes = 0;
  for (const auto& group : groups_) {
    for (const Segment& segment : group->segments) {
      bytes += static_cast<int64_t>(segment.weight.nbytes());
      if (segment.secondary.defined()) {
        bytes += static_cast<int64_t>(segment.secondary.nbytes());
      }
      if (segment.grad.defined()) {
        bytes += static_cast<int64_t>(segment.grad.nbytes());
      }
      if (segment.master.defined() && !segment.master.is_alias_of(segment.weight)) {
        bytes += static_cast<int64_t>(segment.master.nbytes());
      }
    }
    if (group->pinned.defined()) {
      bytes += static_cast<int64_t>(group->pinned.nbytes());
    }
  }
  return bytes;
}

void Store::poison(Group& group, const std::string& reason) noexcept {
  group.state->poison(reason);
  comms_.abort(reason);
}

void Store::poison_all(const std::string& reason) noexcept {
  for (const auto& group : groups_) {
    group->state->poison(reason);
  }
  comms_.abort(reason);
}

void Store::begin_generation() {
  REKNIT_INVARIANT(!generating_ && !updating_, "generation from the store ", settings_.name,
                   generating_ ? " was begun twice" : " was begun during an update");
  generating_ = true;
}

void Store::require_writable(const char* action) const {
  REKNIT_INVARIANT(!generating_ && !pinned_, action, " of the store ", settings_.name,
                   generating_ ? " during generation" : " while pinned for generation");
}

}  // namespace reknit
