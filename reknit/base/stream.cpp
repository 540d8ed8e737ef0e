#include "reknit/base/stream.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace reknit {
namespace {

c10::impl::VirtualGuardImpl guard(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

}  // namespace

Stream Stream::create(c10::Device device, bool high_priority) {
  if (device.is_cpu()) {
    return Stream();
  }
  return Stream(guard(device).getStreamFromGlobalPool(device, high_priority));
}

Stream Stream::current(c10::Device device) {
  if (device.is_cpu()) {
    return Stream();
  }
  return Stream(guard(device).getStream(device));
}

c10::Device Stream::device() const {
  return stream_ ? stream_->device() : c10::Device(c10::kCPU);
}

void Stream::wait(const Event& event) const {
  if (stream_ && event.event_) {
    event.event_->block(*stream_);
  }
}

void Stream::wait(const Stream& other) const {
  if (!stream_ || !other.stream_ || *stream_ == *other.stream_) {
    return;
  }
  Event point;
  point.record(other);
  wait(point);
}

void Stream::synchronize() const {
  if (stream_) {
    stream_->synchronize();
  }
}

Event::Event() = default;
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

void Event::record(const Stream& stream) {
  if (stream.on_cpu()) {
    event_.reset();
    return;
  }
  if (!event_ || event_->device_type() != stream.device().type()) {
    event_ = std::make_unique<c10::Event>(stream.device().type());
  }
  event_->record(*stream.native());
}

bool Event::done() const {
  return !event_ || event_->query();
}

void Event::synchronize() const {
  if (event_) {
    event_->synchronize();
  }
}

StreamScope::StreamScope(const Stream& stream) {
  if (!stream.on_cpu()) {
    previous_ = guard(stream.device()).exchangeStream(*stream.native());
  }
}

StreamScope::~StreamScope() {
  if (previous_) {
    guard(previous_->device()).exchangeStream(*previous_);
  }
}

}  // namespace reknit
