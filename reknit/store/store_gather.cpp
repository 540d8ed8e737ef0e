// Weights: gather, lease, prefetch, release, pin.
#include "reknit/base/error_text.h"
#include "reknit/base/mutant.h"
#include "reknit/base/profile_range.h"
#include "reknit/store/store.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace reknit {

const at::Tensor& Store::gathered_bytes(const Group& group) const {
  return group.pinned.defined() && pinned_ ? group.pinned : group.slot.bytes();
}

at::Tensor Store::param_view(const Group& group, int param) const {
  const ParamPlace& place = group.layout.places[param];
  const Segment& segment = group.segments[place.segment];
  const SegmentLayout& layout = group.layout.segments[place.segment];
  at::Tensor flat = segment.weight;
  if (!segment.resident) {
    flat = gathered_bytes(group).narrow(0, segment.slot_offset, layout.bytes()).view(layout.dtype);
  }
  return flat.narrow(0, place.offset, place.numel).view(group.spec.params[param].shape);
}

Full Store::full(GroupId id, Phase phase) {
  REKNIT_INVARIANT(sealed_ && !updating_, "group ", id, " of store ", settings_.name,
                   sealed_ ? " was read during an update" : " was read before seal");
  Group& group = *groups_.at(id);
  group.state->require_sound();
  if (group.state->weights() == WeightState::kSharded) {
    start_gather(id, phase);
  }
  if (group.state->weights() == WeightState::kGathering && !REKNIT_MUTANT(lease_while_gathering)) {
    finish_gather(group);
  }
  const uint64_t lease = group.state->lease(phase);
  std::vector<ParamView> views;
  views.reserve(group.spec.params.size());
  for (size_t i = 0; i < group.spec.params.size(); ++i) {
    views.emplace_back(&group.spec.params[i].name, param_view(group, static_cast<int>(i)),
                       group.state, group.state->version(), lease);
  }
  Full leased(this, id, lease, std::move(views));
  prefetch_after(id, phase);
  return leased;
}

bool Store::has_secondary(const Group& group) const {
  return comms_.secondary &&
         (group.secondary_version == group.state->version() ||
          (REKNIT_MUTANT(secondary_of_any_version) && group.secondary_version > 0));
}

// Cuts this rank's part of the second copy out of a full one that has just arrived.
void Store::refresh_secondary(Group& group) {
  for (size_t i = 0; i < group.segments.size(); ++i) {
    const Segment& segment = group.segments[i];
    const SegmentLayout& layout = group.layout.segments[i];
    if (segment.secondary.defined() && layout.padded > 0) {
      const int64_t length = segment.secondary.numel();
      segment.secondary.copy_(gathered_bytes(group)
                                  .narrow(0, segment.slot_offset, layout.bytes())
                                  .view(layout.dtype)
                                  .narrow(0, comms_.secondary->rank() * length, length));
    }
  }
  group.secondary_version = group.state->version();
  secondary_written_.record(this_rank().compute);
}

// One pair per gathered segment: its shard (or its part of the second copy) goes out, all of
// it lands in `bytes`.
std::vector<GatherPair> Store::gather_pairs(const Group& group, const at::Tensor& bytes,
                                            bool secondary) const {
  std::vector<GatherPair> pairs;
  for (size_t i = 0; i < group.segments.size(); ++i) {
    const Segment& segment = group.segments[i];
    const SegmentLayout& layout = group.layout.segments[i];
    if (!segment.resident && layout.padded > 0) {
      pairs.push_back({bytes.narrow(0, segment.slot_offset, layout.bytes()).view(layout.dtype),
                       secondary ? segment.secondary : segment.weight});
    }
  }
  return pairs;
}

void Store::start_gather(GroupId id, Phase phase) {
  const ProfileRange range("gather", id);
  Group& group = *groups_[id];
  std::optional<Slot> slot = find_slot(group.slot_bytes);
  require<StateError>(slot.has_value(), "no slot of ", group.slot_bytes,
                      " bytes is free for group ", group.state->name(),
                      ": too many groups are leased at once on rank ", this_rank().rank);
  group.state->begin_gather(phase);
  const Stream& stream = this_rank().gather;
  if (!REKNIT_MUTANT(gather_before_slot_release)) {
    slot->order_after_release(stream);
  }
  if (!REKNIT_MUTANT(gather_before_weights_written)) {
    stream.wait(weights_written_);
  }
  const bool secondary = has_secondary(group);
  const auto pairs = gather_pairs(group, slot->bytes(), secondary);
  if (!secondary) {
    group.gathering.emplace(
        or_poison([&] { return comms_.all_gather(std::move(*slot), pairs, stream); }));
    return;
  }
  if (!REKNIT_MUTANT(gather_before_secondary_written)) {
    stream.wait(secondary_written_);
  }
  group.gathering.emplace(
      or_poison([&] { return comms_.secondary->all_gather(std::move(*slot), pairs, stream); }));
}

void Store::finish_gather(Group& group) {
  group.state->require_sound();
  Pending<Slot> pending = std::move(*group.gathering);
  group.gathering.reset();
  const RankContext& rank = this_rank();
  group.slot = or_poison([&] {
    return std::move(pending).wait(REKNIT_MUTANT(read_before_gather_is_done) ? rank.gather
                                                                             : rank.compute);
  });
  group.state->finish_gather();
  if (comms_.secondary && !has_secondary(group)) {
    refresh_secondary(group);
  }
}

std::optional<Slot> Store::find_slot(int64_t bytes) {
  while (true) {
    std::optional<Slot> slot = pool_.try_acquire(bytes);
    if (slot || !discard_unused(bytes)) {
      return slot;
    }
  }
}

// Moves to the place of this use in the order: the next occurrence in the direction of
// the pass, or this same place again where the pass turns round.
void Store::advance_position(GroupId id, bool backwards) {
  const auto length = static_cast<int64_t>(order_.size());
  const int64_t step = backwards ? -1 : 1;
  const int64_t start = position_.value_or(backwards ? length - 1 : 0);
  const int64_t first = position_ && backwards_ == backwards ? 1 : 0;
  backwards_ = backwards;
  for (int64_t offset = first; offset < first + length; ++offset) {
    const int64_t place = (start + step * offset + 2 * length) % length;
    if (order_[place] == id) {
      position_ = place;
      return;
    }
  }
}

void Store::prefetch_after(GroupId id, Phase phase) {
  if (order_.empty() || pinned_ || !settings_.overlap || phase == Phase::kSave) {
    return;
  }
  const bool backwards = phase == Phase::kBackward;
  advance_position(id, backwards);
  if (!position_) {
    return;  // a group outside of the order
  }
  const auto length = static_cast<int64_t>(order_.size());
  for (int64_t ahead = 1; ahead <= settings_.prefetch_depth && ahead < length; ++ahead) {
    int64_t place = *position_ + (backwards ? -ahead : ahead);
    if (phase == Phase::kGenerate) {
      place %= length;  // the next token begins where this one ended
    }
    if (place < 0 || place >= length) {
      return;
    }
    const Group& next = *groups_[order_[place]];
    if (next.state->weights() == WeightState::kSharded && pool_.has_free(next.slot_bytes) &&
        !(REKNIT_MUTANT(prefetch_on_rank_0_only) && this_rank().rank != 0)) {
      start_gather(order_[place], phase);
    }
  }
}

void Store::release_full(GroupId id, uint64_t lease) noexcept {
  Group& group = *groups_[id];
  const bool last = group.state->release(lease);
  const bool keep = group.keep && !REKNIT_MUTANT(release_kept_groups);
  if ((!last && !REKNIT_MUTANT(release_with_a_reader_left)) || pinned_ || keep ||
      group.slot_bytes == 0) {
    return;
  }
  try {
    discard_full(group);
  } catch (const std::exception& error) {
    poison(group, first_line(error));
  }
}

void Store::discard_full(Group& group) {
  group.state->shard();
  group.slot.release(REKNIT_MUTANT(release_before_readers_end) ? this_rank().gather
                                                               : this_rank().compute);
}

// Frees the slot of one group that is gathered without a reader: first prefetched ones,
// then kept ones (bytes: only slots of that class). The choice depends on the program alone, so it
// is the same on all ranks.
bool Store::discard_unused(int64_t bytes) {
  const auto fits = [&](const Group& group) {
    return bytes == 0 || SlotPool::class_of(group.slot_bytes) == SlotPool::class_of(bytes);
  };
  for (const auto& group : groups_) {
    if (group->state->weights() == WeightState::kGathering && fits(*group) &&
        !REKNIT_MUTANT(drain_forgets_gathers)) {
      finish_gather(*group);
      discard_full(*group);
      return true;
    }
  }
  for (const auto& group : groups_) {
    if (group->slot && group->state->weights() == WeightState::kFull && fits(*group) &&
        group->state->readers() == 0 && !REKNIT_MUTANT(drain_forgets_kept_groups)) {
      discard_full(*group);
      return true;
    }
  }
  return false;
}

void Store::pin() {
  REKNIT_INVARIANT(!pinned_, "the store ", settings_.name, " was pinned twice");
  finish_pass();
  const RankContext& rank = this_rank();
  for (const auto& group : groups_) {
    group->state->require_sound();
    if (group->slot_bytes > 0 && !group->pinned.defined()) {
      group->pinned = new_buffer(group->slot_bytes, at::kByte);
    }
  }
  // New memory is zeroed on compute, old memory may still be read there.
  if (!REKNIT_MUTANT(pin_before_readers_end)) {
    rank.gather.wait(rank.compute);
  }
  std::vector<std::optional<Pending<at::Tensor>>> pending(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = *groups_[g];
    if (group.slot_bytes == 0) {
      continue;
    }
    group.state->begin_gather(Phase::kGenerate);
    pending[g].emplace(or_poison([&] {
      return comms_.all_gather(group.pinned, gather_pairs(group, group.pinned, false), rank.gather);
    }));
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (pending[g]) {
      or_poison([&] { return std::move(*pending[g]).wait(rank.compute); });
      groups_[g]->state->finish_gather(true);
    }
  }
  pinned_ = true;
}

void Store::unpin() {
  REKNIT_INVARIANT(pinned_, "the store ", settings_.name, " was unpinned without pin");
  for (const auto& group : groups_) {
    if (group->slot_bytes > 0) {
      group->state->shard();
      if (pool_.poison_released()) {
        group->pinned.fill_(kPoison);
      }
    }
  }
  pinned_ = false;
}

bool Store::reads_are_local() const {
  return pinned_ || std::all_of(groups_.begin(), groups_.end(),
                                [](const auto& group) { return group->slot_bytes == 0; });
}

void Store::release_pinned_memory() {
  if (pinned_) {
    unpin();
  }
  for (const auto& group : groups_) {
    group->pinned = at::Tensor();
  }
}

}  // namespace reknit
