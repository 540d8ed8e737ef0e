// Points in time: of the host, or of a device's queue, noted at once and read later.
#pragma once

#include "reknit/base/stream.h"

#include <chrono>
#include <memory>

namespace reknit {

/// A small value; copies name the same point.
class Moment {
 public:
  /// Now, on the host.
  Moment() : host_(std::chrono::steady_clock::now()) {}
  /// When the device has done what is queued on `stream` now (an event with timing; the host
  /// does not wait). On the CPU stream: now.
  explicit Moment(const Stream& stream);

  /// Whether it lies in the past. Throws what the device reports.
  bool passed() const;
  /// When the host noted it.
  std::chrono::steady_clock::time_point noted() const { return host_; }

 private:
  friend class MomentClock;
  std::chrono::steady_clock::time_point host_;
  std::shared_ptr<c10::Event> event_;  ///< null: the host's
};

/// Reads moments as seconds since 1970, the clock that processes of a machine share. A device's
/// moments are read against one that this has waited for, so within some 20 us; two moments
/// of one device differ as exactly as the device's own clock.
class MomentClock {
 public:
  /// Of the moments of `stream`'s device. Blocks the host until what is queued there is done.
  explicit MomentClock(const Stream& stream);

  /// Of a moment that has passed.
  double seconds(const Moment& moment) const;
  /// When the host noted it: for a moment that its device never reached.
  static double seconds_noted(const Moment& moment);
  /// From `begin` to `end`, both passed.
  double between(const Moment& begin, const Moment& end) const;

 private:
  Moment base_;
  std::chrono::steady_clock::time_point base_time_;
};

}  // namespace reknit
