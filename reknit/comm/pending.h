// A started collective whose result can only be had by waiting for it.
#pragma once

#include "reknit/base/stream.h"

#include <memory>
#include <string>
#include <utility>

namespace reknit {

/// One operation in flight, as a backend sees it. Owned by exactly one Pending.
class Work {
 public:
  virtual ~Work() = default;

  /// Orders `stream` after the result: device work queued on `stream` later sees it. Where
  /// the backend moves the data on the host (gloo, threads) the host blocks until every
  /// rank has joined. With the CPU stream the host blocks until the result is there,
  /// polling the abort flag and the deadline.
  /// Throws CommError naming group, operation, sequence number and the missing
  /// ranks after the timeout, or the first error of the aborted group.
  virtual void wait(const Stream& stream) = 0;

  /// True once wait() would not block the host. Never throws, never blocks.
  virtual bool ready() const noexcept = 0;

  /// The result was dropped unwaited: aborts the group with that reason. Local.
  virtual void abandon() noexcept = 0;
};

/// The future owner of `T` (a slot, tensors) that a collective is writing. Move-only;
/// while it runs nobody else can reach the memory. Dropping it unwaited aborts the
/// communicator: every later use of the group, on every rank, throws.
template <class T>
class [[nodiscard]] Pending {
 public:
  Pending(T value, std::unique_ptr<Work> work) : value_(std::move(value)), work_(std::move(work)) {}
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&& other) noexcept {
    if (this != &other) {
      drop();
      value_ = std::move(other.value_);
      work_ = std::move(other.work_);
    }
    return *this;
  }
  ~Pending() { drop(); }

  /// The only way to the result; see Work::wait. If it throws, the value is gone.
  T wait(const Stream& stream) && {
    std::unique_ptr<Work> work = std::move(work_);
    work->wait(stream);
    return std::move(value_);
  }

  /// As wait, but blocks the host until the result is there: for what the host reads. A
  /// stream that a group's abort has freed ends without an error, so a copy that was only
  /// ordered after it would bring what happened to be in the memory.
  T wait_on_host() && { return std::move(*this).wait(Stream()); }

  bool ready() const noexcept { return work_ == nullptr || work_->ready(); }

 private:
  void drop() noexcept {
    if (work_) {
      work_->abandon();
      work_.reset();
    }
  }

  T value_;
  std::unique_ptr<Work> work_;
};

}  // namespace reknit
