#include "reknit/comm/watchdog.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace reknit {

struct Watch::Entry {
  explicit Entry(std::function<void()> callback) : poll(std::move(callback)) {}

  std::function<void()> poll;
  std::mutex running;  ///< held during a call
  bool ended = false;  ///< guarded by `running`
};

namespace {

constexpr std::chrono::milliseconds kPeriod{20};

/// The thread and its list. `Entry` is private to Watch, so calls are kept as closures.
class Dog {
 public:
  static Dog& get() {
    static Dog dog;
    return dog;
  }

  void add(const void* key, std::function<void()> call) {
    std::lock_guard starting(start_mutex_);
    std::lock_guard lock(mutex_);
    calls_.emplace_back(key, std::move(call));
    if (calls_.size() == 1) {
      thread_ = std::thread([this] { run(); });
    }
  }

  void remove(const void* key) {
    std::lock_guard starting(start_mutex_);
    std::thread ended;
    {
      std::lock_guard lock(mutex_);
      std::erase_if(calls_, [&](const auto& call) { return call.first == key; });
      if (calls_.empty()) {
        ended = std::move(thread_);
      }
      wake_.notify_all();
    }
    if (ended.joinable()) {
      ended.join();
    }
  }

  void hurry() {
    std::lock_guard lock(mutex_);
    hurry_ = true;
    wake_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!calls_.empty()) {
      hurry_ = false;
      const auto round = calls_;
      lock.unlock();
      for (const auto& call : round) {
        call.second();
      }
      lock.lock();
      wake_.wait_for(lock, kPeriod, [&] { return hurry_ || calls_.empty(); });
    }
  }

  std::mutex start_mutex_;  ///< one start or end of the thread at a time
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::pair<const void*, std::function<void()>>> calls_;
  bool hurry_ = false;
  std::thread thread_;
};

}  // namespace

Watch::Watch(std::function<void()> poll) : entry_(std::make_shared<Entry>(std::move(poll))) {
  Dog::get().add(entry_.get(), [entry = entry_] {
    std::lock_guard lock(entry->running);
    if (!entry->ended) {
      entry->poll();
    }
  });
}

Watch::~Watch() {
  {
    std::lock_guard lock(entry_->running);
    entry_->ended = true;
  }
  Dog::get().remove(entry_.get());
}

void Watch::hurry() noexcept {
  Dog::get().hurry();
}

}  // namespace reknit
