#include "reknit/engine/background.h"

#include "reknit/base/error.h"
#include "reknit/base/rank.h"

#include <system_error>

namespace reknit {

void Background::start(c10::Device device, std::function<void()> work) {
  REKNIT_INVARIANT(!thread_.joinable(), "work was started in the background beside other work");
  ended_ = false;
  const auto body = [this, device, rank = this_rank().rank, world = this_rank().world,
                     work = std::move(work)] {
    try {
      const RankScope scope(rank, world, device);
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
    ended_.store(true, std::memory_order_release);
  };
  try {
    thread_ = std::thread(body);
  } catch (const std::system_error& error) {
    throw CommError(str("a thread for work in the background of rank ", this_rank().rank,
                        " cannot be started: ", error.what()),
                    "start fewer ranks, or raise the limit on threads (ulimit -u)");
  }
}

void Background::finish() {
  join();
  if (error_) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void Background::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace reknit
