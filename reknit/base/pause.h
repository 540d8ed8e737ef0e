// Between two looks of the host at something that is about to happen.
#pragma once

#include <chrono>
#include <thread>

namespace reknit {

/// Called between two looks: yields at first, as most things happen soon, and sleeps later.
class Pause {
 public:
  void operator()() const {
    if (std::chrono::steady_clock::now() - start_ < std::chrono::microseconds(200)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace reknit
