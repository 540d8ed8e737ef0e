// The optimizer's side: shards out, new versions in.
#include "reknit/base/mutant.h"
#include "reknit/store/store.h"

#include <ATen/ATen.h>

namespace reknit {

// The parts of a segment's parameters that lie in its elements `held`.
std::vector<ShardSlice> Store::slices_of(const Group& group, int segment, Extent held) {
  std::vector<ShardSlice> slices;
  for (const int param : group.layout.segments[segment].params) {
    const ParamPlace& place = group.layout.places[param];
    const Extent part = intersect({place.offset, place.offset + place.numel}, held);
    if (part.size() > 0) {
      slices.push_back({&group.spec.params[param],
                        {part.begin - held.begin, part.end - held.begin},
                        part.begin - place.offset});
    }
  }
  return slices;
}

std::vector<OptimizerShard> Store::optimizer_shards(bool with_grad) {
  const Placement& placement = settings_.placement;
  std::vector<OptimizerShard> shards;
  for (const auto& group : groups_) {
    for (size_t i = 0; i < group->segments.size(); ++i) {
      const Segment& segment = group->segments[i];
      const SegmentLayout& layout = group->layout.segments[i];
      if (!layout.trainable) {
        continue;
      }
      const bool whole = placement.optimizer_shards() == 1;
      const Extent mine = whole ? Extent{0, layout.padded} : layout.shard(shard_index());
      const auto piece = [&](const at::Tensor& flat) {
        return flat.numel() == mine.size() ? flat : flat.narrow(0, mine.begin, mine.size());
      };
      OptimizerShard shard{segment.master,
                           with_grad ? piece(segment.grad) : at::Tensor(),
                           piece(segment.weight),
                           {}};
      shard.slices = slices_of(*group, static_cast<int>(i), mine);
      shards.push_back(std::move(shard));
    }
  }
  return shards;
}

std::vector<OptimizerShard> Store::shards() {
  return optimizer_shards(false);
}

std::vector<OptimizerShard> Store::frozen_shards() {
  std::vector<OptimizerShard> shards;
  for (const auto& group : groups_) {
    for (size_t i = 0; i < group->segments.size(); ++i) {
      const SegmentLayout& layout = group->layout.segments[i];
      if (!layout.trainable) {
        const Extent mine = layout.shard(shard_index());
        const at::Tensor& weight = group->segments[i].weight;
        shards.push_back(
            {{},
             {},
             group->segments[i].resident ? weight.narrow(0, mine.begin, mine.size()) : weight,
             slices_of(*group, static_cast<int>(i), mine)});
      }
    }
  }
  return shards;
}

std::vector<OptimizerShard> Store::begin_update() {
  require_writable("an update");
  REKNIT_INVARIANT(!updating_, "the store ", settings_.name,
                   " was updated while an update was under way");
  for (const auto& group : groups_) {
    if (group->gradient_bytes > 0) {
      group->state->consume_gradients();
    }
  }
  updating_ = true;
  return optimizer_shards(true);
}

void Store::end_update() {
  REKNIT_INVARIANT(updating_, "end_update of ", settings_.name, " without begin_update");
  updating_ = false;
  clear_gradients();
  publish_masters();
}

void Store::publish_masters() {
  gather_replicated_weights();
  for (const auto& group : groups_) {
    if (group->gradient_bytes > 0 && !REKNIT_MUTANT(forget_to_raise_version)) {
      group->state->raise_version();
    }
  }
  if (!REKNIT_MUTANT(forget_weights_written)) {
    weights_written_.record(this_rank().compute);
  }
}

void Store::swap_masters(std::vector<at::Tensor>& values) {
  require_writable("a swap of the masters");
  REKNIT_INVARIANT(!updating_, "the masters of ", settings_.name,
                   " were swapped while an update was under way");
  const std::vector<OptimizerShard> all = shards();
  REKNIT_INVARIANT(all.size() == values.size(), "a swap of ", values.size(), " masters for ",
                   all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const at::Tensor before = all[i].master.clone();
    all[i].master.copy_(values[i]);
    all[i].weight.copy_(all[i].master);
    values[i].copy_(before);
  }
  publish_masters();
}

void Store::drop_step() {
  finish_pass();
  updating_ = false;
  for (const auto& group : groups_) {
    if (group->state->gradients() == GradientState::kAccumulating) {
      // Left open for more of it by reduce(..., false).
      group->state->begin_reduce();
      group->gradient_slot.release(this_rank().compute);
      group->state->finish_reduce();
    }
    if (group->state->gradients() == GradientState::kReduced) {
      group->state->consume_gradients();
    }
  }
  clear_gradients();
}

void Store::clear_gradients() {
  const RankContext& rank = this_rank();
  rank.compute.wait(rank.reduce);
  for (const auto& group : groups_) {
    for (const Segment& segment : group->segments) {
      if (segment.grad.defined() && !REKNIT_MUTANT(forget_to_clear_gradients)) {
        segment.grad.zero_();
      }
    }
  }
  has_gradients_ = false;
}

// Weights that are whole on every rank but updated in pieces (ZeRO 1 and 2, persistent
// parameters): each rank sends its piece, in place.
void Store::gather_replicated_weights() {
  if (settings_.placement.optimizer_shards() == 1 || REKNIT_MUTANT(forget_replicated_weights)) {
    return;
  }
  const RankContext& rank = this_rank();
  std::vector<GatherPair> pairs;
  std::vector<at::Tensor> keep;
  for (const auto& group : groups_) {
    for (size_t i = 0; i < group->segments.size(); ++i) {
      const SegmentLayout& layout = group->layout.segments[i];
      if (group->segments[i].resident && layout.trainable && layout.padded > 0) {
        const at::Tensor& weight = group->segments[i].weight;
        const Extent mine = layout.shard(shard_index());
        pairs.push_back({weight, weight.narrow(0, mine.begin, mine.size())});
        keep.push_back(weight);
      }
    }
  }
  if (!pairs.empty()) {
    or_poison(
        [&] { return comms_.all_gather(std::move(keep), pairs, rank.compute).wait(rank.compute); });
  }
}

}  // namespace reknit
