// The ranks of an NCCL group that live in this process, and the watch over them.
#pragma once

#include "reknit/comm/abort_note.h"
#include "reknit/comm/job_store.h"
#include "reknit/comm/nccl_buffer.h"
#include "reknit/comm/operation.h"

#include <nccl.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>

namespace reknit {

constexpr int64_t kStartUp = -1;  ///< in place of a sequence number

/// Success, or success later.
bool accepted(ncclResult_t result);
/// Non-blocking communicators: every call returns at once and can be broken off.
ncclConfig_t nccl_config();

/// The calls of one thread that NCCL takes together: they go out with end(), or where the
/// scope is left by an error.
class NcclCalls {
 public:
  NcclCalls() { ncclGroupStart(); }
  ~NcclCalls() {
    if (open_) {
      ncclGroupEnd();
    }
  }
  NcclCalls(const NcclCalls&) = delete;

  /// The first failure among `result`, of the calls, and their going out.
  ncclResult_t end(ncclResult_t result) {
    open_ = false;
    const ncclResult_t ended = ncclGroupEnd();
    return accepted(result) ? ended : result;
  }

 private:
  bool open_ = true;
};

/// An operation on its way through the device.
struct InFlight {
  CommKind kind;
  int64_t sequence;
  std::chrono::steady_clock::time_point deadline;
  std::shared_ptr<Event> done;
};

/// A rank of this process.
struct LocalRank {
  c10::Device device = c10::kCPU;
  Stream stream;     ///< for barriers
  at::Tensor token;  ///< what barriers reduce
  std::atomic<int64_t> joined = 0;
  int64_t splits = 0;  ///< the rank's thread only

  std::mutex mutex;  ///< guards what follows
  ncclComm_t comm = nullptr;
  ncclComm_t splitting = nullptr;  ///< written by NCCL in the background
  std::deque<InFlight> in_flight;
  std::map<void*, void*> registered;  ///< handle by base of the range
};

/// The ranks of a group that live in this process: all of them where ranks are threads.
class NcclGroup : public JobMember {
 public:
  NcclGroup(std::shared_ptr<JobStore> job, std::string path, int size, CommOptions options);
  ~NcclGroup() override;

  int size() const { return size_; }
  const CommOptions& options() const { return options_; }
  const std::shared_ptr<JobStore>& job() const { return job_; }

  /// Makes room for `rank`, whose communicator is created next.
  LocalRank& add(int rank, c10::Device device);
  /// After the communicators of all ranks of this process exist.
  void open();
  /// As add and open, by the ranks' threads: returns when all are there, or throws what
  /// has failed one of them.
  void install(int rank, c10::Device device, ncclComm_t comm);

  /// Queues `operation` of `rank` on `stream`. Rank's thread.
  InFlight start(int rank, const Operation& operation, const Stream& stream);
  /// The group of `members`, of which `rank` is one, and its rank there.
  std::pair<std::shared_ptr<NcclGroup>, int> split(int rank, const std::vector<int>& members,
                                                   const std::string& name);
  /// Orders `stream` after the operation; a CPU stream: blocks the host until then.
  void wait(const InFlight& operation, const Stream& stream);
  bool ready(const InFlight& operation) const noexcept;
  void abort(const std::string& reason) noexcept;
  /// Throws what has ended the group. The first rank that hears of an error found here throws
  /// it as its own.
  void require_alive();
  /// Waits for a call that NCCL carries out in the background.
  void finish(int rank, ncclComm_t comm, ncclResult_t result, CommKind kind, int64_t sequence);

  const std::string& path() const override { return path_; }
  int group_rank() const override { return first_rank_; }
  int64_t joined() const noexcept override { return ranks_[first_rank_]->joined; }
  void hear_abort(const std::string& reason) noexcept override;
  void close() noexcept override;

 private:
  using Lock = std::lock_guard<std::mutex>;

  void fail(const std::string& reason) noexcept;
  void end(const std::string& reason, bool own) noexcept;
  void note_abort(const std::string& reason, bool own) noexcept;
  ncclResult_t issue(LocalRank& rank, const Operation& operation,
                     const std::vector<ncclDataType_t>& types, const Stream& stream);
  void register_buffers(LocalRank& rank, const std::vector<NcclRange>& ranges);
  void forget(void* base) noexcept;
  std::shared_ptr<NcclGroup> part_of(int64_t number, int lowest, int size,
                                     const CommOptions& options);
  std::string late(const InFlight& operation);
  void poll() noexcept;
  void look_after(int rank);
  ncclComm_t await_part(int rank, int64_t sequence);
  void finalize() noexcept;
  bool settled(LocalRank& rank, std::chrono::steady_clock::time_point deadline) noexcept;

  const std::shared_ptr<JobStore> job_;  ///< absent where all ranks are threads
  const std::string path_;
  const int size_;
  const CommOptions options_;
  int first_rank_ = -1;                            ///< the lowest of this process
  std::vector<std::unique_ptr<LocalRank>> ranks_;  ///< by rank; absent: another process's

  mutable std::mutex mutex_;
  AbortNote aborted_;
  bool closed_ = false;
  std::map<std::pair<int64_t, int>, std::weak_ptr<NcclGroup>> parts_;

  std::atomic<int> installed_ = 0;
  std::atomic<bool> opened_ = false;
  std::unique_ptr<NcclRangeListener> listener_;
  std::unique_ptr<Watch> watch_;
};

}  // namespace reknit
