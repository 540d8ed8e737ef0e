// What the processes of a job tell each other beside their collectives: who is there,
// how far each group is, who has failed.
#pragma once

#include "reknit/comm/gloo.h"
#include "reknit/comm/patient_store.h"
#include "reknit/comm/watchdog.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>

namespace reknit {

/// A group as the job sees it. Called on the watchdog thread and, for hear_abort, on
/// the thread that aborts.
class JobMember {
 public:
  virtual ~JobMember() = default;

  /// Unique in the job; a group split from `p` is called "p/...".
  virtual const std::string& path() const = 0;
  virtual int group_rank() const = 0;
  /// Operations joined so far.
  virtual int64_t joined() const noexcept = 0;
  /// Fails the group locally; later calls are ignored.
  virtual void hear_abort(const std::string& reason) noexcept = 0;
  /// After hear_abort, when the other processes have been told: frees what blocks.
  virtual void close() noexcept = 0;
};

/// The key-value store that the processes share (libtorch's TCPStore, served by rank 0
/// or by the launcher's agent), and this process's voice in it. Thread-safe. Once the
/// store is lost (the serving process has ended or does not answer) posts are dropped and questions
/// are answered with nothing.
class JobStore {
 public:
  /// Collective over the processes; returns when all are there. Says every 30 s which
  /// ranks are missing and throws CommError after the timeout. Calls of one process for
  /// the same place share one store.
  static std::shared_ptr<JobStore> join(const Rendezvous& rendezvous, const CommOptions& options);

  JobStore(const Rendezvous& rendezvous, const CommOptions& options);
  /// The serving process waits up to 30 s (1 s after a failure) for the others to leave.
  ~JobStore();
  JobStore(const JobStore&) = delete;

  int rank() const { return rendezvous_.rank; }
  int world() const { return rendezvous_.world; }
  const std::string& host() const { return rendezvous_.host; }

  /// The path of the process's next group of all ranks: the same on all processes.
  std::string next_path();
  /// A connection of its own to the store, under `prefix`; it waits for a key for `timeout`.
  PatientStore connection(const std::string& prefix, std::chrono::milliseconds timeout) const;
  /// What to say where the store is lost.
  std::string without_store() const;

  /// From here to detach the member hears of aborts and its progress is posted, every
  /// second or, with a short `timeout`, more often.
  void attach(JobMember& member, std::chrono::milliseconds timeout);
  void detach(JobMember& member) noexcept;

  /// Fails the groups at and under `path` in this process at once and in the others
  /// within a watchdog round or two. Never blocks.
  void abort(const std::string& path, const std::string& reason) noexcept;
  /// Sends what abort() has queued, now.
  void flush() noexcept;

  /// Operations joined by each rank of the group at `path`, as last posted (0 if never);
  /// nothing if the store is lost.
  std::vector<int64_t> progress(const std::string& path, int size);
  /// Asks every process for a sign of life, for up to a second; who gave none. Stops
  /// early if `enough` turns true. Nothing if the store is lost. When this process has
  /// answered itself it has heard of every abort before the question.
  std::optional<std::vector<int>> silent_ranks(const std::function<bool()>& enough);

  /// Of a failed job: elects the process that says why. Nothing: it is this one, which has to
  /// speak at once and then call said(). Otherwise the exit code that another one has said.
  /// `echo`: the error is another process's, which goes first. A speaker that dies, or falls
  /// silent for seconds, is replaced; once the store is lost, every process speaks.
  std::optional<int> await_speaker(bool echo) noexcept;
  void said(int code) noexcept;

 private:
  static constexpr int kNothingSaid = -1;

  struct Aborted {
    std::string path;
    std::string reason;
  };

  void meet(const CommOptions& options);
  void connect(std::chrono::milliseconds timeout, std::chrono::milliseconds left);
  void leave() noexcept;
  bool serves() const;
  std::vector<std::string> keys_of_all(const char* name) const;
  std::string unopened(const std::exception& error) const;
  std::vector<int> missing() const;
  void poll() noexcept;
  void lose() noexcept;
  void read_log();
  void hear(int64_t number, const std::string& entry);
  void post_progress();
  void deliver(const Aborted& aborted, bool told) noexcept;
  int64_t append(const std::string& entry);

  const Rendezvous rendezvous_;
  const std::string prefix_;
  PatientStore store_;   ///< asked by the ranks
  PatientStore polled_;  ///< asked by the watchdog
  std::atomic<bool> lost_ = false;
  std::atomic<int> said_ = kNothingSaid;  ///< the exit code that a process has said

  std::mutex members_mutex_;
  std::vector<std::pair<JobMember*, int64_t>> members_;  ///< and the progress last posted
  std::chrono::milliseconds progress_period_{1000};
  std::vector<Aborted> aborted_;  ///< all so far
  std::vector<Aborted> unsent_;
  std::mutex sending_mutex_;

  int64_t next_path_ = 0;
  int64_t log_read_ = 0;
  std::chrono::steady_clock::time_point log_time_{};
  std::chrono::steady_clock::time_point progress_time_{};
  std::unique_ptr<Watch> watch_;
};

}  // namespace reknit
