// The one thread of a process that looks after its collectives.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace reknit {

/// Something that the watchdog thread calls about every 20 ms from now until this is
/// destroyed, which waits for a call in progress. The thread starts with the first
/// Watch of the process and ends with the last.
class Watch {
 public:
  /// `poll` must not throw, must not wait for other ranks and must not destroy a Watch.
  explicit Watch(std::function<void()> poll);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Makes the next round start at once. Thread-safe, never blocks for long.
  static void hurry() noexcept;

 private:
  struct Entry;
  std::shared_ptr<Entry> entry_;
};

}  // namespace reknit
