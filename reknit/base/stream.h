// Streams and events that exist on CUDA and are free of cost on CPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>

namespace c10 {
class Event;
}

namespace reknit {

class Event;

/// A queue of device work. On CPU there is one queue, the calling thread, and
/// every method returns at once. A small value; copies name the same queue.
class Stream {
 public:
  /// The CPU stream.
  Stream() = default;

  /// A high- or normal-priority stream of `device` (CPU: the CPU stream), the next of torch's
  /// 32: the 33rd is the first again, so order between two of them may only be tighter.
  static Stream create(c10::Device device, bool high_priority = false);
  /// The stream that this thread's kernels go to by default.
  static Stream current(c10::Device device);

  c10::Device device() const;
  bool on_cpu() const { return !stream_; }
  const std::optional<c10::Stream>& native() const { return stream_; }

  /// Orders this stream after `event` (stream wait; the host does not block).
  void wait(const Event& event) const;
  /// Orders this stream after all work now queued on `other` (stream wait).
  void wait(const Stream& other) const;
  /// Blocks the host until the work queued so far is done.
  void synchronize() const;

 private:
  explicit Stream(c10::Stream stream) : stream_(stream) {}
  std::optional<c10::Stream> stream_;
};

/// A point in a stream. Default-constructed or recorded on the CPU stream it is
/// always complete.
class Event {
 public:
  Event();
  ~Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;

  void record(const Stream& stream);
  /// True once the work before the point is done; throws what the device reports.
  bool done() const;
  /// Blocks the host until `done()`.
  void synchronize() const;

 private:
  friend class Stream;
  std::unique_ptr<c10::Event> event_;
};

/// Makes `stream` the thread's current stream for the scope.
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;

 private:
  std::optional<c10::Stream> previous_;
};

}  // namespace reknit
