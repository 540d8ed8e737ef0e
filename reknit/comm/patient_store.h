// libtorch's stores, asked with a limit: its own calls wait without end for a process that
// has been stopped.
#pragma once

#include "reknit/base/error.h"

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace c10d {
class Store;
}

namespace reknit {

/// For a store that is well, to answer a question that waits for nothing.
inline constexpr std::chrono::milliseconds kAnswer{3000};

/// What `ask` returns, or throws, on a thread of its own. CommError if that takes longer than
/// `limit`, in which the time does not count that this process is stopped itself: the thread is
/// then left asleep, so `ask` has to own all that it uses. With an answer it has let go of it.
template <class Ask>
std::invoke_result_t<Ask> answer_within(std::chrono::milliseconds limit, Ask ask) {
  constexpr std::chrono::milliseconds kSlice{50};
  std::packaged_task<std::invoke_result_t<Ask>()> task(
      [kept = std::make_optional(std::move(ask))]() mutable {
        Ask own = std::move(*kept);
        kept.reset();
        return own();
      });
  auto answer = task.get_future();
  std::thread(std::move(task)).detach();
  for (auto left = limit; left.count() > 0; left -= kSlice) {
    if (answer.wait_for(std::min(left, kSlice)) == std::future_status::ready) {
      return answer.get();
    }
  }
  throw CommError(str("no answer within ", static_cast<double>(limit.count()) / 1000, " s"));
}

/// A connection to a store; every call throws CommError if no answer comes within the limit.
class PatientStore {
 public:
  PatientStore() = default;
  PatientStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds limit);

  explicit operator bool() const { return store_ != nullptr; }
  /// For libtorch's groups, whose calls have no limit.
  const c10::intrusive_ptr<c10d::Store>& unlimited() const { return store_; }
  /// A new connection, under `prefix`; get() waits for a key for `timeout`.
  PatientStore connection(const std::string& prefix, std::chrono::milliseconds timeout) const;

  bool check(const std::vector<std::string>& keys) const;
  int64_t add(const std::string& key, int64_t value) const;
  void set(const std::string& key, const std::string& value) const;
  std::string get(const std::string& key) const;
  void remove(const std::string& key) const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds limit_{};
};

}  // namespace reknit
