#include "reknit/comm/job_store.h"

#include "reknit/base/error.h"
#include "reknit/base/error_text.h"
#include "reknit/base/log.h"
#include "reknit/base/torch_log.h"
#include "reknit/comm/operation.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <thread>

namespace reknit {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kReport = 30s;       ///< between two lines about missing ranks
constexpr auto kLogPeriod = 100ms;  ///< between two looks at the job's log
constexpr auto kLook = 200ms;       ///< between two looks at who is missing
constexpr auto kRollCall = 1s;
constexpr auto kFarewell = 30s;  ///< for the others to leave a job that went well
constexpr auto kFailedFarewell = 1s;
constexpr auto kSpeech = 3s;  ///< for a speaker to say what it has to

const std::string kAbort = "abort\n";
const std::string kRoll = "roll";
const std::string kSaid = "said\n";

std::string numbered(const char* name, int64_t number) {
  return str(name, "/", number);
}

}  // namespace

std::shared_ptr<JobStore> JobStore::join(const Rendezvous& rendezvous, const CommOptions& options) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<JobStore>> known;
  std::lock_guard lock(mutex);
  auto& place = known[str(rendezvous.host, ":", rendezvous.port, "/", rendezvous.key_prefix, "/",
                          rendezvous.rank)];
  auto store = place.lock();
  if (!store) {
    store = std::make_shared<JobStore>(rendezvous, options);
    place = store;
  }
  return store;
}

JobStore::JobStore(const Rendezvous& rendezvous, const CommOptions& options)
    : rendezvous_(rendezvous), prefix_(str("reknit/", rendezvous.key_prefix)) {
  require<UsageError>(rendezvous_.rank >= 0 && rendezvous_.rank < rendezvous_.world, "rank ",
                      rendezvous_.rank, " of a job of ", rendezvous_.world, " processes");
  quiet_torch();
  meet(options);
  watch_ = std::make_unique<Watch>([this] { poll(); });
}

JobStore::~JobStore() {
  watch_.reset();
  flush();
  leave();
}

/// The serving process stays, for a while, until the others have left.
void JobStore::leave() noexcept {
  const bool failed = lost_ || !aborted_.empty() || std::uncaught_exceptions() > 0;
  const auto deadline = Clock::now() + (failed ? kFailedFarewell : kFarewell);
  try {
    if (lost_) {
      return;
    }
    store_.remove(numbered("joined", rendezvous_.rank));
    store_.set(numbered("left", rendezvous_.rank), std::string("1"));
    const auto left = keys_of_all("left");
    while (serves() && !store_.check(left) && Clock::now() < deadline) {
      std::this_thread::sleep_for(5ms);
    }
  } catch (const std::exception&) {
    lose();
  }
}

bool JobStore::serves() const {
  return rendezvous_.rank == 0 && !rendezvous_.agent_store;
}

std::vector<std::string> JobStore::keys_of_all(const char* name) const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < rendezvous_.world; ++rank) {
    keys.push_back(numbered(name, rank));
  }
  return keys;
}

/// Waits for the server for at most about `left`.
void JobStore::connect(std::chrono::milliseconds timeout, std::chrono::milliseconds left) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(rendezvous_.port);
  options.isServer = serves();
  options.waitWorkers = false;
  // libtorch begins attempts until then and gives each as long again: up to 2.5 times this.
  options.timeout = std::clamp<std::chrono::milliseconds>(left / 3, 100ms, kReport);
  const auto connect_to = [host = rendezvous_.host, options] {
    auto tcp = c10::make_intrusive<c10d::TCPStore>(host, options);
    tcp->setTimeout(kReport);
    return std::pair(tcp, tcp->clone());
  };
  const auto [asked, polled] = answer_within(options.timeout * 5 / 2 + kAnswer, connect_to);
  store_ = {c10::make_intrusive<c10d::PrefixStore>(prefix_, asked), kAnswer};
  // A process that is stopped for a while costs nothing as long as no collective fails.
  polled_ = {c10::make_intrusive<c10d::PrefixStore>(prefix_, polled), std::max(timeout, kAnswer)};
  store_.set(numbered("joined", rendezvous_.rank), std::string("1"));
}

std::vector<int> JobStore::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < rendezvous_.world; ++rank) {
    if (!store_.check({numbered("joined", rank)})) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

/// Why the serving process cannot serve. It keeps trying: the job before may be on its way out.
std::string JobStore::unopened(const std::exception& error) const {
  const bool taken = std::string_view(error.what()).find("EADDRINUSE") != std::string_view::npos;
  return taken ? str("port ", rendezvous_.port, " is taken by another process")
               : str("port ", rendezvous_.port, " cannot be opened: ", first_line(error));
}

void JobStore::meet(const CommOptions& options) {
  const auto start = Clock::now();
  auto report = start + kReport;
  auto look = start;
  std::string state;
  while (Clock::now() - start < options.timeout) {
    try {
      if (!store_) {
        const auto passed = Clock::now() - start;
        connect(options.timeout,
                options.timeout - std::chrono::duration_cast<std::chrono::milliseconds>(passed));
      }
      if (store_.check(keys_of_all("joined"))) {
        return;
      }
      if (Clock::now() > look) {
        look = Clock::now() + kLook;
        state = str("ranks missing: ", list_of(missing()), " of ", rendezvous_.world);
      }
    } catch (const std::exception& error) {
      store_ = {};
      state = serves() ? unopened(error)
                       : str("ranks missing: 0 of ", rendezvous_.world,
                             ", whose process does not answer there");
    }
    if (Clock::now() > report) {
      report += kReport;
      log_warning("waiting at ", rendezvous_.host, ":", rendezvous_.port, ", ", state);
    }
    std::this_thread::sleep_for(store_ ? 10ms : 500ms);
  }
  throw CommError(str("group ", options.name, ": start-up at ", rendezvous_.host, ":",
                      rendezvous_.port, " timed out after ",
                      static_cast<double>(options.timeout.count()) / 1000, " s: ", state));
}

std::string JobStore::next_path() {
  std::lock_guard lock(members_mutex_);
  return str("group", next_path_++);
}

PatientStore JobStore::connection(const std::string& prefix,
                                  std::chrono::milliseconds timeout) const {
  return polled_.connection(prefix, timeout);
}

std::string JobStore::without_store() const {
  return str("the store at ", rendezvous_.host, ":", rendezvous_.port, ", which ",
             rendezvous_.agent_store ? "the launcher" : "the process of rank 0",
             " serves, has ended or does not answer");
}

void JobStore::attach(JobMember& member, std::chrono::milliseconds timeout) {
  std::lock_guard lock(members_mutex_);
  progress_period_ = std::min(progress_period_, timeout / 8);
  members_.emplace_back(&member, 0);
  for (const Aborted& aborted : aborted_) {
    if (member.path().starts_with(aborted.path + "/")) {
      member.hear_abort(aborted.reason);
    }
  }
}

void JobStore::detach(JobMember& member) noexcept {
  std::lock_guard lock(members_mutex_);
  std::erase_if(members_, [&](const auto& known) { return known.first == &member; });
}

void JobStore::abort(const std::string& path, const std::string& reason) noexcept {
  const Aborted aborted{path, reason};
  {
    std::lock_guard lock(members_mutex_);
    aborted_.push_back(aborted);
    unsent_.push_back(aborted);
  }
  deliver(aborted, false);
  Watch::hurry();
}

/// Fails the members at and under the path; `told`: the other processes know.
void JobStore::deliver(const Aborted& aborted, bool told) noexcept {
  std::lock_guard lock(members_mutex_);
  for (const auto& [member, posted] : members_) {
    if (member->path() == aborted.path || member->path().starts_with(aborted.path + "/")) {
      member->hear_abort(aborted.reason);
      if (told) {
        member->close();
      }
    }
  }
}

int64_t JobStore::append(const std::string& entry) {
  const int64_t number = store_.add("log", 1) - 1;
  store_.set(numbered("log", number), entry);
  return number;
}

void JobStore::flush() noexcept {
  std::lock_guard one_sender(sending_mutex_);
  std::vector<Aborted> sending;
  {
    std::lock_guard lock(members_mutex_);
    sending.swap(unsent_);
  }
  for (const Aborted& aborted : sending) {
    if (!lost_) {
      try {
        append(kAbort + aborted.path + "\n" + aborted.reason);
      } catch (const std::exception&) {
        lose();
      }
    }
    deliver(aborted, true);
  }
}

/// From here on the store is not asked any more.
void JobStore::lose() noexcept {
  lost_ = true;
}

void JobStore::poll() noexcept {
  flush();
  if (lost_) {
    return;
  }
  try {
    read_log();
    post_progress();
  } catch (const std::exception&) {
    lose();
  }
}

void JobStore::read_log() {
  if (Clock::now() - log_time_ < kLogPeriod) {
    return;
  }
  log_time_ = Clock::now();
  for (const int64_t end = polled_.add("log", 0); log_read_ < end; ++log_read_) {
    const std::string key = numbered("log", log_read_);
    if (!polled_.check({key})) {
      return;
    }
    hear(log_read_, polled_.get(key));
  }
}

void JobStore::hear(int64_t number, const std::string& entry) {
  if (entry == kRoll) {
    polled_.set(str("alive/", number, "/", rendezvous_.rank), std::string("1"));
  } else if (entry.starts_with(kSaid)) {
    said_ = std::stoi(entry.substr(kSaid.size()));
  } else {
    const size_t end_of_path = entry.find('\n', kAbort.size());
    const Aborted aborted{entry.substr(kAbort.size(), end_of_path - kAbort.size()),
                          entry.substr(end_of_path + 1)};
    {
      std::lock_guard lock(members_mutex_);
      aborted_.push_back(aborted);
    }
    deliver(aborted, true);
  }
}

void JobStore::post_progress() {
  std::vector<std::pair<std::string, int64_t>> news;
  {
    std::lock_guard lock(members_mutex_);
    if (Clock::now() - progress_time_ < progress_period_) {
      return;
    }
    progress_time_ = Clock::now();
    for (auto& [member, posted] : members_) {
      const int64_t joined = member->joined();
      if (joined != posted) {
        posted = joined;
        news.emplace_back(str("progress/", member->path(), ":", member->group_rank()), joined);
      }
    }
  }
  for (const auto& [key, joined] : news) {
    polled_.set(key, std::to_string(joined));
  }
}

std::vector<int64_t> JobStore::progress(const std::string& path, int size) {
  std::vector<int64_t> reached;
  try {
    for (int rank = 0; rank < size && !lost_; ++rank) {
      const std::string key = str("progress/", path, ":", rank);
      reached.push_back(store_.check({key}) ? std::stoll(store_.get(key)) : 0);
    }
  } catch (const std::exception&) {
    lose();
    reached.clear();
  }
  return reached;
}

std::optional<std::vector<int>> JobStore::silent_ranks(const std::function<bool()>& enough) {
  try {
    const int64_t call = append(kRoll);
    const auto start = Clock::now();
    std::vector<int> silent;
    do {
      std::this_thread::sleep_for(20ms);
      silent.clear();
      for (int rank = 0; rank < rendezvous_.world; ++rank) {
        if (!store_.check({str("alive/", call, "/", rank)})) {
          silent.push_back(rank);
        }
      }
    } while (!silent.empty() && !enough() && Clock::now() - start < kRollCall);
    return silent;
  } catch (const std::exception&) {
    lose();
    return std::nullopt;
  }
}

std::optional<int> JobStore::await_speaker(bool echo) noexcept {
  try {
    for (int turn = 0; said_ == kNothingSaid && !lost_; ++turn) {
      // The first turn is for those that found the error themselves.
      const bool runs = !echo || turn > 0;
      if (runs && store_.add(numbered("speaker", turn), 1) == 1) {
        return std::nullopt;
      }
      const auto deadline = Clock::now() + kSpeech;
      while (said_ == kNothingSaid && !lost_ && Clock::now() < deadline) {
        std::this_thread::sleep_for(10ms);
      }
    }
  } catch (const std::exception&) {
    lose();
  }
  return said_ == kNothingSaid ? std::nullopt : std::optional<int>(said_);
}

void JobStore::said(int code) noexcept {
  try {
    if (!lost_) {
      append(kSaid + std::to_string(code));
    }
  } catch (const std::exception&) {
    lose();
  }
}

}  // namespace reknit
