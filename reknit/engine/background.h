// One piece of a rank's work on a thread of its own.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>

#include <c10/core/Device.h>

namespace reknit {

/// Runs at most one function at a time. What start() was given is the function's alone until
/// running() has said false or finish() has returned. One owner, one thread; the destructor
/// waits for the function.
class Background {
 public:
  Background() = default;
  ~Background() { join(); }
  Background(const Background&) = delete;

  /// Runs `work` as the calling rank on `device`, with one thread for tensor operations.
  /// Nothing may be running. Throws CommError if the system starts no thread.
  void start(c10::Device device, std::function<void()> work);
  bool running() const { return thread_.joinable() && !ended_.load(std::memory_order_acquire); }
  /// Waits, and throws what the function threw, once.
  void finish();

 private:
  void join();

  std::thread thread_;
  std::atomic<bool> ended_ = false;
  std::exception_ptr error_;  ///< the thread's until `ended_`
};

}  // namespace reknit
