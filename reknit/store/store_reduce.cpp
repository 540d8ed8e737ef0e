// Gradients: open, reduce, accumulate, and the boundary.
#include "reknit/base/mutant.h"
#include "reknit/base/profile_range.h"
#include "reknit/kernels/update.h"
#include "reknit/store/store.h"

#include <ATen/ATen.h>

namespace reknit {

at::Tensor Store::gradient_view(const Group& group, int segment) const {
  const SegmentLayout& layout = group.layout.segments[segment];
  return group.gradient_slot.bytes()
      .narrow(0, group.segments[segment].gradient_offset, layout.bytes())
      .view(layout.dtype);
}

at::Tensor Store::wire_view(const Group& group, const Slot& slot, int segment) const {
  const SegmentLayout& layout = group.layout.segments[segment];
  const Segment& place = group.segments[segment];
  if (group.wire_bytes == 0) {
    return slot.bytes().narrow(0, place.gradient_offset, layout.bytes()).view(layout.dtype);
  }
  const at::ScalarType dtype = settings_.reduce_dtype.value_or(layout.dtype);
  const auto bytes = layout.padded * static_cast<int64_t>(c10::elementSize(dtype));
  return slot.bytes().narrow(0, place.wire_offset, bytes).view(dtype);
}

Gradients Store::gradients(GroupId id) {
  Group& group = *groups_.at(id);
  group.state->require_sound();
  while (group.state->gradients() == GradientState::kReducing) {
    finish_oldest_reduce();
  }
  const bool first = group.state->gradients() == GradientState::kNone;
  if (first && group.gradient_bytes > 0) {
    Slot slot = take_gradient_slot(group.gradient_bytes);
    if (!REKNIT_MUTANT(zero_before_slot_release)) {
      slot.order_after_release(this_rank().compute);
    }
    group.gradient_slot = std::move(slot);
    if (!REKNIT_MUTANT(forget_zeroing)) {
      group.gradient_slot.bytes().narrow(0, 0, group.gradient_bytes).zero_();
    }
  }
  group.state->open_gradients();
  std::vector<at::Tensor> views(group.spec.params.size());
  for (size_t i = 0; i < views.size(); ++i) {
    const ParamPlace& place = group.layout.places[i];
    if (group.layout.segments[place.segment].trainable) {
      views[i] = gradient_view(group, place.segment)
                     .narrow(0, place.offset, place.numel)
                     .view(group.spec.params[i].shape);
    }
  }
  return Gradients(this, id, std::move(views));
}

Slot Store::take_gradient_slot(int64_t bytes) {
  while (true) {
    std::optional<Slot> slot = find_slot(bytes);
    if (slot) {
      return std::move(*slot);
    }
    require<StateError>(!reductions_.empty(), "no slot of ", bytes,
                        " bytes is free for gradients of ", settings_.name,
                        ": too many groups are open at once on rank ", this_rank().rank);
    finish_oldest_reduce();
  }
}

void Store::reduce(Gradients&& gradients, bool last) {
  const GroupId id = gradients.group();
  Group& group = *groups_.at(id);
  gradients.close();
  group.state->close_gradients();
  if (last) {
    start_reduce(id);
  }
}

// The group's gradients, cast into a slot of their own that is sent instead.
void Store::move_to_wire(Group& group) {
  const Stream& compute = this_rank().compute;
  Slot wire = take_gradient_slot(group.wire_bytes);
  wire.order_after_release(compute);
  for (size_t i = 0; i < group.segments.size(); ++i) {
    if (group.layout.segments[i].trainable) {
      const int segment = static_cast<int>(i);
      wire_view(group, wire, segment).copy_(gradient_view(group, segment));
    }
  }
  group.gradient_slot.release(compute);
  group.gradient_slot = std::move(wire);
}

void Store::start_reduce(GroupId id) {
  const ProfileRange range("reduce", id);
  Group& group = *groups_[id];
  const RankContext& rank = this_rank();
  group.state->begin_reduce();
  if (group.gradient_bytes == 0) {
    group.state->finish_reduce();
    return;
  }
  has_gradients_ = true;
  if (settings_.placement.gradient_shards() == 1) {
    for (size_t i = 0; i < group.segments.size(); ++i) {
      if (group.segments[i].grad.defined()) {
        ops::accumulate(group.segments[i].grad, gradient_view(group, static_cast<int>(i)));
      }
    }
    group.gradient_slot.release(rank.compute);
    group.state->finish_reduce();
    return;
  }
  if (group.wire_bytes > 0) {
    move_to_wire(group);
  }
  if (!REKNIT_MUTANT(reduce_before_backward_wrote)) {
    rank.reduce.wait(rank.compute);
  }
  std::vector<ScatterPair> pairs;
  for (size_t i = 0; i < group.segments.size(); ++i) {
    const SegmentLayout& layout = group.layout.segments[i];
    if (layout.trainable && layout.padded > 0) {
      const at::Tensor full = wire_view(group, group.gradient_slot, static_cast<int>(i));
      const Extent mine = layout.shard(shard_index());
      pairs.push_back({full, full.narrow(0, mine.begin, mine.size())});
    }
  }
  group.reducing.emplace(or_poison([&] {
    return comms_.reduce->reduce_scatter(std::move(group.gradient_slot), pairs, rank.reduce);
  }));
  reductions_.push_back(id);
  while (reductions_.size() > (settings_.overlap ? 1 : 0)) {
    finish_oldest_reduce();
  }
  if (!settings_.overlap) {
    rank.compute.wait(rank.reduce);
  }
}

// Adds the reduced piece to the gradient shard, on the reduce stream.
void Store::finish_oldest_reduce() {
  Group& group = *groups_[reductions_.front()];
  reductions_.pop_front();
  const Stream& stream = this_rank().reduce;
  Pending<Slot> pending = std::move(*group.reducing);
  group.reducing.reset();
  group.gradient_slot = or_poison([&] {
    return std::move(pending).wait(REKNIT_MUTANT(accumulate_before_reduced) ? this_rank().copy
                                                                            : stream);
  });
  {
    const StreamScope scope(stream);
    for (size_t i = 0; i < group.segments.size(); ++i) {
      const SegmentLayout& layout = group.layout.segments[i];
      for (int times = REKNIT_MUTANT(accumulate_twice) ? 2 : 1; layout.trainable && times > 0;
           --times) {
        const Extent mine = layout.shard(shard_index());
        ops::accumulate(group.segments[i].grad,
                        wire_view(group, group.gradient_slot, static_cast<int>(i))
                            .narrow(0, mine.begin, mine.size()));
      }
    }
  }
  group.gradient_slot.release(REKNIT_MUTANT(reuse_gradients_before_reduced) ? this_rank().compute
                                                                            : stream);
  group.state->finish_reduce();
}

void Store::drop_gradients(GroupId id) noexcept {
  Group& group = *groups_[id];
  poison(group, str("the gradients of group ", group.state->name(),
                    " were dropped without reduce() on rank ", this_rank().rank));
}

void Store::finish_pass() {
  while (!reductions_.empty()) {
    finish_oldest_reduce();
  }
  if (!pinned_) {
    while (discard_unused()) {
    }
  }
  position_.reset();
}

void Store::finish_gradients() {
  finish_pass();
  const RankContext& rank = this_rank();
  if (!REKNIT_MUTANT(update_before_reductions_end)) {
    rank.compute.wait(rank.reduce);
  }
  or_poison([&] { sum_over_ranks(); });
  for (const auto& group : groups_) {
    if (group->gradient_bytes > 0) {
      group->state->mark_reduced();
    }
  }
}

// What reduce() has not summed: all of it under ZeRO 0 and 1, and across shard groups.
void Store::sum_over_ranks() {
  const Placement& placement = settings_.placement;
  std::vector<at::Tensor> whole;
  std::vector<at::Tensor> cut;
  std::vector<at::Tensor> pieces;
  for (const auto& group : groups_) {
    for (size_t i = 0; i < group->segments.size(); ++i) {
      const at::Tensor& grad = group->segments[i].grad;
      if (!grad.defined() || grad.numel() == 0) {
        continue;
      }
      const Extent mine = group->layout.segments[i].shard(shard_index());
      const bool cut_now = placement.gradient_shards() == 1 && placement.optimizer_shards() > 1;
      pieces.push_back(cut_now ? grad.narrow(0, mine.begin, mine.size()) : grad);
      if (cut_now) {
        cut.push_back(grad);
      } else if (placement.gradient_shards() == 1 && placement.shard_size > 1) {
        whole.push_back(grad);
      }
    }
  }
  if (!whole.empty()) {
    all_reduce_gradients(*comms_.reduce, whole);
  }
  if (!cut.empty()) {
    scatter_gradients(cut, pieces);
  }
  if (comms_.replica && !pieces.empty() && !REKNIT_MUTANT(forget_replicas)) {
    all_reduce_gradients(*comms_.replica, pieces);
  }
}

void Store::all_reduce_gradients(Communicator& comm, const std::vector<at::Tensor>& grads) {
  const Stream& stream = this_rank().compute;
  const at::ScalarType dtype = settings_.reduce_dtype.value_or(at::kFloat);
  std::vector<at::Tensor> sent;
  for (const at::Tensor& grad : grads) {
    sent.push_back(grad.to(dtype));  // the same tensor in fp32
  }
  sent = comm.all_reduce(std::move(sent), ReduceOp::kSum, stream).wait(stream);
  for (size_t i = 0; i < grads.size() && dtype != at::kFloat; ++i) {
    grads[i].copy_(sent[i]);
  }
}

// Every rank's piece of the sum; the rest of `grads` is consumed.
void Store::scatter_gradients(const std::vector<at::Tensor>& grads,
                              const std::vector<at::Tensor>& pieces) {
  const Stream& stream = this_rank().compute;
  const at::ScalarType dtype = settings_.reduce_dtype.value_or(at::kFloat);
  std::vector<ScatterPair> pairs;
  std::vector<at::Tensor> sent;
  for (size_t i = 0; i < grads.size(); ++i) {
    sent.push_back(grads[i].to(dtype));
    const int64_t length = pieces[i].numel();
    pairs.push_back({sent.back(), sent.back().narrow(0, shard_index() * length, length)});
  }
  comms_.reduce->reduce_scatter(std::move(sent), pairs, stream).wait(stream);
  for (size_t i = 0; i < pieces.size() && dtype != at::kFloat; ++i) {
    pieces[i].copy_(pairs[i].shard);
  }
}

}  // namespace reknit
