#include "reknit/store/store.h"

#include "reknit/base/mutant.h"

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
  for (const auto& group : groups_) {
    group->keep = false;
  }
  std::vector<int> uses(groups_.size(), 0);
  for (const GroupId id : forward_order) {
    groups_.at(id)->keep = ++uses[id] > 1;
  }
  order_ = std::move(forward_order);
}

void Store::seal() {
  REKNIT_INVARIANT(!sealed_, "the store ", settings_.name, " was sealed twice");
  LayoutRules rules{settings_.dtype, settings_.placement.shard_size,
                    settings_.persistence_threshold, settings_.persistence_limit};
  for (const auto& group : groups_) {
    group->layout = GroupLayout::of(group->spec, rules);
    rules.persistence_limit -= group->layout.persistent_numel;
    allocate(*group);
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
  bool on_the_wire = false;
  for (const SegmentLayout& layout : group.layout.segments) {
    Segment segment;
    segment.resident = layout.persistent || placement.weight_shards() == 1;
    segment.weight =
        new_buffer(segment.resident ? layout.padded : layout.shard_numel(), layout.dtype);
    if (!segment.resident) {
      segment.slot_offset = group.slot_bytes;
      group.slot_bytes += layout.bytes();
      if (comms_.secondary) {
        segment.secondary =
            new_buffer(layout.padded / settings_.placement.secondary_size, layout.dtype);
      }
    }
    if (layout.trainable) {
      segment.gradient_offset = group.gradient_bytes;
      group.gradient_bytes += layout.bytes();
      segment.wire_offset = group.wire_bytes;
      group.wire_bytes +=
          layout.padded *
          static_cast<int64_t>(c10::elementSize(settings_.reduce_dtype.value_or(layout.dtype)));
      on_the_wire = on_the_wire || settings_.reduce_dtype.value_or(layout.dtype) != layout.dtype;
      segment.grad = new_buffer(layout.padded / placement.gradient_shards(), at::kFloat);
      const Extent mine = placement.optimizer_shards() == 1 ? Extent{0, layout.padded}
                                                            : layout.shard(shard_index());
      const int64_t skip = segment.resident ? mine.begin : 0;
      segment.master = layout.dtype == at::kFloat
                           ? segment.weight.narrow(0, skip, mine.size())
                           : at::zeros({mine.size()}, segment.grad.options());
    }
    group.segments.push_back(std::move(segment));
  }
  if (!on_the_wire || placement.gradient_shards() == 1) {
    group.wire_bytes = 0;
  }
  if (group.slot_bytes == 0) {
    group.state->make_resident();
  }
}

void Store::require_slots() {
  struct Demand {
    int groups = 0, kept = 0;
  };
  std::map<int64_t, Demand> weights;
  std::map<int64_t, Demand> gradients;
  std::map<int64_t, Demand> wires;
  for (const auto& group : groups_) {
    Demand& weight = weights[SlotPool::class_of(group->slot_bytes)];
    weight.groups += 1;
    weight.kept += group->keep;
    Demand& gradient = gradients[SlotPool::class_of(group->gradient_bytes)];
    gradient.groups += 1;
    gradient.kept += group->keep;
    wires[SlotPool::class_of(group->wire_bytes)].groups += 1;
  }
  std::map<int64_t, int> wanted;
  for (const auto& [bytes, demand] : weights) {
    wanted[bytes] += std::min(demand.groups, demand.kept + settings_.prefetch_depth + 1);
  }
  for (const auto& [bytes, demand] : gradients) {
    wanted[bytes] += std::min(demand.groups, demand.kept + 2);
  }
  for (const auto& [bytes, demand] : wires) {
    wanted[bytes] += std::min(demand.groups, 2);
  }
  for (const auto& [bytes, count] : wanted) {
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
  auto values = store->comms_.world->broadcast({value_}, owner_, stream).wait(stream);
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
