#include "reknit/comm/recorder.h"

#include "reknit/base/error.h"
#include "reknit/base/pause.h"
#include "reknit/base/rank.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace reknit {
namespace {

thread_local Recorder* current_recorder = nullptr;

/// Changes of state that are kept unread: beyond it the host waits for the device.
constexpr size_t kUnread = 50'000;

}  // namespace

Recorder* Recorder::current() {
  return current_recorder;
}

Recorder::Recorder(Trace* trace) : trace_(trace) {
  REKNIT_INVARIANT(current_recorder == nullptr, "rank ", this_rank().rank,
                   " is recorded already: a second recorder would hear half of it");
  current_recorder = this;
}

Recorder::~Recorder() {
  current_recorder = nullptr;
  for (const auto& group : groups_) {
    group->recorder = nullptr;
  }
  if (trace_ == nullptr) {
    return;
  }
  try {
    const MomentClock clock(this_rank().compute);
    for (const auto& group : groups_) {
      read(*group, clock);
    }
    trace_states(&clock);
  } catch (const std::exception&) {
    trace_states(nullptr);  // the device has failed, and its clock with it
  }
  trace_unfinished();
}

std::shared_ptr<CommRecord> Recorder::begin(OperationCommunicator& communicator,
                                            std::shared_ptr<CommHistory>& group,
                                            const Operation& operation, const Stream& stream) {
  if (paused_) {
    return nullptr;
  }
  if (!group || group->recorder != this) {
    group = std::make_shared<CommHistory>();
    group->recorder = this;
    group->communicator = &communicator;
    group->name = communicator.options().name;
    group->rank = communicator.rank();
    group->size = communicator.size();
    groups_.push_back(group);
  }
  auto record = std::make_shared<CommRecord>();
  record->kind = operation.kind;
  record->bytes = operation.payload_bytes();
  record->number = group->begun++;
  record->begin = Moment(stream);
  group->records.push_back(record);
  return record;
}

/// The operations of a group that have ended, up to the first that has not.
std::vector<CommTime> Recorder::read(CommHistory& group, const MomentClock& clock) {
  std::vector<CommTime> times;
  while (!group.records.empty() && group.records.front()->ended.load(std::memory_order_acquire) &&
         group.records.front()->end.passed()) {
    const std::shared_ptr<CommRecord> record = std::move(group.records.front());
    group.records.pop_front();
    const double begin = clock.seconds(record->begin);
    // Joined while an earlier one was still waiting: its own time begins after that.
    const double overlap = std::max(0.0, group.last_end - begin);
    const double seconds = std::max(0.0, clock.between(record->begin, record->end) - overlap);
    group.last_end = std::max(group.last_end, begin + overlap + seconds);
    times.push_back({.group = group.name,
                     .group_size = group.size,
                     .kind = record->kind,
                     .bytes = record->bytes,
                     .number = record->number,
                     .seconds = seconds,
                     .moving = seconds});
    if (trace_ != nullptr) {
      trace_->add(trace_->row("collectives " + group.name), {.label = name_of(record->kind),
                                                             .begin = begin + overlap,
                                                             .seconds = seconds,
                                                             .bytes = record->bytes,
                                                             .number = record->number});
    }
  }
  return times;
}

std::vector<CommTime> Recorder::collect(bool compare_ranks) {
  const MomentClock clock(this_rank().compute);
  std::vector<CommTime> all;
  for (size_t i = 0; i < groups_.size(); ++i) {
    CommHistory& group = *groups_[i];
    for (const auto& record : group.records) {
      const auto over = [&] {
        return record->ended.load(std::memory_order_acquire) && record->end.passed();
      };
      for (Pause pause; group.communicator != nullptr && !over(); pause()) {
        group.communicator->require_alive();
      }
    }
    std::vector<CommTime> times = read(group, clock);
    if (compare_ranks && group.communicator != nullptr && group.size > 1 && !times.empty()) {
      compare(group, times);
    }
    all.insert(all.end(), times.begin(), times.end());
  }
  if (trace_ != nullptr) {
    trace_states(&clock);
  }
  return all;
}

void Recorder::compare(CommHistory& group, std::vector<CommTime>& times) {
  const auto count = static_cast<int64_t>(times.size());
  at::Tensor mine = at::empty({count}, at::kDouble);
  for (int64_t i = 0; i < count; ++i) {
    mine.mutable_data_ptr<double>()[i] = times[i].seconds;
  }
  const at::Tensor shard = mine.to(this_rank().device);
  const at::Tensor full = at::empty({count * group.size}, shard.options());
  const Silence silence(*this);
  const at::Tensor all = group.communicator->all_gather(full, {{full, shard}}, this_rank().compute)
                             .wait_on_host()
                             .cpu();
  const double* seconds = all.const_data_ptr<double>();
  std::vector<double> of_ranks(group.size);
  for (int64_t i = 0; i < count; ++i) {
    for (int rank = 0; rank < group.size; ++rank) {
      of_ranks[rank] = seconds[rank * count + i];
    }
    const double own = of_ranks[group.rank];
    std::nth_element(of_ranks.begin(), of_ranks.begin() + 1, of_ranks.end());
    const double least = std::min(of_ranks[0], of_ranks[1]);
    const double second = std::max(of_ranks[0], of_ranks[1]);
    times[i].moving = least;
    times[i].came_last = own == least && second > least;
    times[i].late_by = times[i].came_last ? second - least : 0;
  }
}

void Recorder::change_state(const std::string& name, const char* label, const Stream& stream,
                            int64_t version) {
  if (trace_ == nullptr) {
    return;
  }
  const auto [place, is_new] = states_.try_emplace(name);
  State& state = place->second;
  if (is_new) {
    state.row = trace_->row(name);
  }
  const Moment now(stream);
  if (state.label != nullptr) {
    happened_.push_back({state.row, state.label, state.version, state.since, now, false});
  }
  state.label = label;
  state.version = version;
  state.since = now;
  make_room();
}

void Recorder::mark(const std::string& row, const char* label, const Stream& stream,
                    int64_t number) {
  if (trace_ != nullptr) {
    const Moment now(stream);
    happened_.push_back({trace_->row(row), label, number, now, now, true});
    make_room();
  }
}

void Recorder::span(const std::string& row, const char* label, const Moment& begin,
                    int64_t number) {
  if (trace_ != nullptr) {
    happened_.push_back({trace_->row(row), label, number, begin, Moment(), false});
  }
}

// A long generation without a step's end must not fill the memory.
void Recorder::make_room() {
  if (happened_.size() < kUnread) {
    return;
  }
  const MomentClock clock(this_rank().compute);
  for (const auto& group : groups_) {
    read(*group, clock);
  }
  trace_states(&clock);
}

/// Without a clock: as the host noted them.
void Recorder::trace_states(const MomentClock* clock) {
  const auto seconds = [&](const Moment& moment) {
    return clock != nullptr && moment.passed() ? clock->seconds(moment)
                                               : MomentClock::seconds_noted(moment);
  };
  for (const Happening& it : happened_) {
    const double begin = seconds(it.begin);
    trace_->add(it.row, {.label = it.label,
                         .begin = begin,
                         .seconds = it.instant ? -1 : std::max(0.0, seconds(it.end) - begin),
                         .number = it.number});
  }
  happened_.clear();
}

/// What the run's end found open: it goes on to the end.
void Recorder::trace_unfinished() {
  const double now = MomentClock::seconds_noted(Moment());
  for (const auto& group : groups_) {
    for (const auto& record : group->records) {
      const double begin = MomentClock::seconds_noted(record->begin);
      trace_->add(trace_->row("collectives " + group->name + ", not finished"),
                  {.label = name_of(record->kind),
                   .begin = begin,
                   .seconds = now - begin,
                   .bytes = record->bytes,
                   .number = record->number});
    }
  }
  for (const auto& [name, state] : states_) {
    if (state.label != nullptr) {
      const double begin = MomentClock::seconds_noted(state.since);
      trace_->add(
          state.row,
          {.label = state.label, .begin = begin, .seconds = now - begin, .number = state.version});
    }
  }
}

}  // namespace reknit
