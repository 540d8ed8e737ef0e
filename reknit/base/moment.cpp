#include "reknit/base/moment.h"

#include <c10/core/Event.h>

namespace reknit {
namespace {

using Steady = std::chrono::steady_clock;

double since_1970(Steady::time_point time) {
  using Wall = std::chrono::system_clock;
  // Taken once, so that no correction of the wall clock moves what a run has noted.
  static const auto origin = std::pair(Steady::now(), Wall::now());
  const std::chrono::duration<double> wall = origin.second.time_since_epoch();
  const std::chrono::duration<double> passed = time - origin.first;
  return wall.count() + passed.count();
}

}  // namespace

Moment::Moment(const Stream& stream) : Moment() {
  if (!stream.on_cpu()) {
    event_ = std::make_shared<c10::Event>(stream.device().type(), c10::EventFlag::BACKEND_DEFAULT);
    event_->record(*stream.native());
  }
}

bool Moment::passed() const {
  return !event_ || event_->query();
}

MomentClock::MomentClock(const Stream& stream) : base_(stream) {
  if (base_.event_) {
    base_.event_->synchronize();
  }
  base_time_ = Steady::now();
}

double MomentClock::seconds(const Moment& moment) const {
  if (!moment.event_ || !base_.event_) {
    return since_1970(moment.host_);
  }
  return since_1970(base_time_) + base_.event_->elapsedTime(*moment.event_) / 1e3;
}

double MomentClock::seconds_noted(const Moment& moment) {
  return since_1970(moment.host_);
}

double MomentClock::between(const Moment& begin, const Moment& end) const {
  if (begin.event_ && end.event_) {
    return begin.event_->elapsedTime(*end.event_) / 1e3;
  }
  if (!begin.event_ && !end.event_) {
    return std::chrono::duration<double>(end.host_ - begin.host_).count();
  }
  return seconds(end) - seconds(begin);
}

}  // namespace reknit
