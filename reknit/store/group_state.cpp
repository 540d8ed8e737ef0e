#include "reknit/store/group_state.h"

#include "reknit/base/mutant.h"
#include "reknit/base/rank.h"
#include "reknit/comm/recorder.h"

#include <algorithm>

namespace reknit {

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "train-forward";
    case Phase::kBackward:
      return "train-backward";
    case Phase::kGenerate:
      return "generate";
    case Phase::kSave:
      return "save";
  }
  return "?";
}

const char* to_string(WeightState state) {
  switch (state) {
    case WeightState::kSharded:
      return "Sharded";
    case WeightState::kGathering:
      return "Gathering";
    case WeightState::kFull:
      return "Full";
  }
  return "?";
}

const char* to_string(GradientState state) {
  switch (state) {
    case GradientState::kNone:
      return "None";
    case GradientState::kAccumulating:
      return "Accumulating";
    case GradientState::kReducing:
      return "Reducing";
    case GradientState::kReduced:
      return "Reduced";
  }
  return "?";
}

std::string GroupState::describe() const {
  return str("weights ", to_string(weights_), ", gradients ", to_string(gradients_),
             ", full copy of version ", full_version_, ", shard at version ", version_, ", ",
             leases_.size(), " readers, phase ", to_string(phase_), ", rank ", this_rank().rank);
}

void GroupState::require_state(bool ok, const char* action) const {
  require_sound();
  if (!ok) {
    throw StateError(str("cannot ", action, " group ", name_, ": ", describe()));
  }
}

/// For the trace, if there is one.
void GroupState::record(const char* state, const Stream& stream) const {
  if (Recorder* recorder = Recorder::current()) {
    recorder->change_state(name_, state, stream, static_cast<int64_t>(version_));
  }
}

void GroupState::begin_gather(Phase phase) {
  require_state(weights_ == WeightState::kSharded, "gather");
  phase_ = phase;
  weights_ = WeightState::kGathering;
  full_version_ = version_;
  record("gathering", this_rank().gather);
}

void GroupState::finish_gather(bool pinned) {
  require_state(weights_ == WeightState::kGathering, "finish the gather of");
  weights_ = WeightState::kFull;
  record(pinned ? "pinned" : "gathered", this_rank().compute);
}

void GroupState::make_resident() {
  require_state(weights_ == WeightState::kSharded, "make resident");
  resident_ = true;
  weights_ = WeightState::kFull;
  full_version_ = version_;
}

uint64_t GroupState::lease(Phase phase) {
  require_state((weights_ == WeightState::kFull && full_version_ == version_) ||
                    REKNIT_MUTANT(lease_without_state_check),
                "read");
  phase_ = phase;
  leases_.push_back(next_lease_);
  return next_lease_++;
}

bool GroupState::release(uint64_t lease) noexcept {
  std::erase(leases_, lease);
  return leases_.empty();
}

void GroupState::shard() {
  require_state((weights_ == WeightState::kFull && !resident_ && leases_.empty()) ||
                    REKNIT_MUTANT(shard_without_reader_check),
                "release");
  weights_ = WeightState::kSharded;
  record(nullptr, this_rank().compute);
}

void GroupState::raise_version() {
  const WeightState at_rest = resident_ ? WeightState::kFull : WeightState::kSharded;
  require_state(
      (weights_ == at_rest && leases_.empty()) || REKNIT_MUTANT(raise_version_of_full_copies),
      "update");
  ++version_;
  if (resident_) {
    full_version_ = version_;
  }
  if (Recorder* recorder = Recorder::current()) {
    recorder->mark(name_, "updated", this_rank().compute, static_cast<int64_t>(version_));
  }
}

void GroupState::open_gradients() {
  require_state(!gradient_leased_ && (gradients_ == GradientState::kNone ||
                                      gradients_ == GradientState::kAccumulating),
                "open the gradients of");
  gradients_ = GradientState::kAccumulating;
  gradient_leased_ = true;
}

void GroupState::close_gradients() {
  require_state(gradient_leased_, "close the gradients of");
  gradient_leased_ = false;
}

void GroupState::begin_reduce() {
  require_state(gradients_ == GradientState::kAccumulating && !gradient_leased_, "reduce");
  gradients_ = GradientState::kReducing;
}

void GroupState::finish_reduce() {
  require_state(gradients_ == GradientState::kReducing, "finish the reduction of");
  gradients_ = GradientState::kNone;
}

void GroupState::mark_reduced() {
  require_state(gradients_ == GradientState::kNone, "finish the gradients of");
  gradients_ = GradientState::kReduced;
}

void GroupState::consume_gradients() {
  require_state(gradients_ == GradientState::kReduced, "update from the gradients of");
  gradients_ = GradientState::kNone;
}

void GroupState::poison(const std::string& reason) noexcept {
  if (poison_.empty()) {
    poison_ = reason;
  }
}

void GroupState::require_sound() const {
  if (!poison_.empty()) {
    throw StateError(poison_);
  }
}

void GroupState::require_readable(const std::string& parameter, uint64_t version,
                                  uint64_t lease) const {
  const bool leased = std::find(leases_.begin(), leases_.end(), lease) != leases_.end();
  const bool current =
      (version == version_ && full_version_ == version_) || REKNIT_MUTANT(skip_version_check);
  if (poison_.empty() && weights_ == WeightState::kFull && current && leased) [[likely]] {
    return;
  }
  require_sound();
  throw StateError(str("parameter ", parameter, " was read ",
                       leased ? "" : "after its lease had ended, ", "at version ", version,
                       " while its group ", name_, " has ", describe()));
}

}  // namespace reknit
