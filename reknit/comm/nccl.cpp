#include "reknit/comm/nccl.h"

#include "reknit/base/error.h"
#include "reknit/base/rank.h"
#include "reknit/comm/job_store.h"
#include "reknit/comm/nccl_buffer.h"
#include "reknit/comm/operation.h"

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

namespace reknit {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kPoll = 20us;
constexpr int64_t kStartUp = -1;  ///< in place of a sequence number
constexpr auto kFarewell = 10s;   ///< for the other ranks to finish what was started

/// An operation on its way through the device.
struct InFlight {
  CommKind kind;
  int64_t sequence;
  Clock::time_point deadline;
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

ncclDataType_t type_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return ncclUint8;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    case at::kHalf:
      return ncclFloat16;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    default:
      throw StateError(reknit::str("NCCL groups carry no ", type));
  }
}

bool accepted(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

ncclConfig_t config_of() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

/// NVLink multicast stays off unless the environment wants it.
void prepare_environment() {
  setenv("NCCL_NVLS_ENABLE", "0", 0);
}

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
  /// As add and open, by the ranks' threads: returns when all are there.
  void install(int rank, c10::Device device, ncclComm_t comm);

  std::unique_ptr<Work> start(int rank, Operation operation, const Stream& stream,
                              std::shared_ptr<NcclGroup> self);
  std::unique_ptr<Communicator> split(int rank, int color, const std::string& name);
  void wait(const InFlight& operation, const Stream& stream);
  bool ready(const InFlight& operation) const noexcept;
  void abort(const std::string& reason) noexcept;
  /// Waits for a call that NCCL carries out in the background.
  void finish(int rank, ncclResult_t result, CommKind kind, int64_t sequence);
  ncclComm_t await_part(int rank, int64_t sequence);

  const std::string& path() const override { return path_; }
  int group_rank() const override { return first_rank_; }
  int64_t joined() const noexcept override { return ranks_[first_rank_]->joined; }
  void hear_abort(const std::string& reason) noexcept override;
  void close() noexcept override;

 private:
  using Lock = std::lock_guard<std::mutex>;

  void require_alive();
  void fail(const std::string& reason) noexcept;
  ncclResult_t issue(LocalRank& rank, const Operation& operation, const Stream& stream);
  void register_buffers(LocalRank& rank, const Operation& operation);
  void forget(void* base) noexcept;
  std::shared_ptr<NcclGroup> part_of(int64_t number, int color, int size, const std::string& name);
  std::string late(const InFlight& operation);
  void poll() noexcept;
  void look_after(int rank);
  void finalize() noexcept;

  const std::shared_ptr<JobStore> job_;  ///< absent where all ranks are threads
  const std::string path_;
  const int size_;
  const CommOptions options_;
  int first_rank_ = -1;                            ///< the lowest of this process
  std::vector<std::unique_ptr<LocalRank>> ranks_;  ///< by rank; absent: another process's

  mutable std::mutex mutex_;
  std::optional<std::string> aborted_;
  bool own_failure_ = false;  ///< found here and not thrown yet
  bool closed_ = false;
  std::map<std::pair<int64_t, int>, std::weak_ptr<NcclGroup>> parts_;

  std::atomic<int> installed_ = 0;
  std::atomic<bool> opened_ = false;
  std::unique_ptr<NcclRangeListener> listener_;
  std::unique_ptr<Watch> watch_;
};

class NcclWork : public Work {
 public:
  NcclWork(std::shared_ptr<NcclGroup> group, InFlight in_flight, Operation operation, int rank)
      : group_(std::move(group)),
        in_flight_(std::move(in_flight)),
        operation_(std::move(operation)),
        rank_(rank) {}

  void wait(const Stream& stream) override { group_->wait(in_flight_, stream); }
  bool ready() const noexcept override { return group_->ready(in_flight_); }
  void abandon() noexcept override {
    group_->abort(abandon_sentence(group_->options(), in_flight_.kind, in_flight_.sequence, rank_));
  }

 private:
  std::shared_ptr<NcclGroup> group_;
  InFlight in_flight_;
  Operation operation_;  ///< keeps the tensors alive
  int rank_;
};

class NcclCommunicator : public OperationCommunicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  const CommOptions& options() const override { return group_->options(); }
  void abort(const std::string& reason) noexcept override { group_->abort(reason); }
  std::unique_ptr<Communicator> split(int color, const std::string& name) override {
    return group_->split(rank_, color, name);
  }

 protected:
  std::unique_ptr<Work> start(Operation operation, const Stream& stream) override {
    return group_->start(rank_, std::move(operation), stream, group_);
  }

 private:
  std::shared_ptr<NcclGroup> group_;
  int rank_;
};

NcclGroup::NcclGroup(std::shared_ptr<JobStore> job, std::string path, int size, CommOptions options)
    : job_(std::move(job)), path_(std::move(path)), size_(size), options_(std::move(options)) {
  ranks_.resize(size_);
}

NcclGroup::~NcclGroup() {
  if (job_ && watch_) {
    job_->detach(*this);
  }
  watch_.reset();
  listener_.reset();
  if (aborted_) {
    if (job_) {
      job_->flush();
    }
    close();
  } else {
    finalize();
  }
}

LocalRank& NcclGroup::add(int rank, c10::Device device) {
  const c10::DeviceGuard guard(device);
  auto local = std::make_unique<LocalRank>();
  local->device = device;
  local->stream = Stream::create(device, true);
  local->token = at::zeros({1}, at::TensorOptions(at::kFloat).device(device));
  Stream::current(device).synchronize();
  Lock lock(mutex_);
  ranks_[rank] = std::move(local);
  first_rank_ = first_rank_ < 0 ? rank : std::min(first_rank_, rank);
  return *ranks_[rank];
}

void NcclGroup::open() {
  listener_ = std::make_unique<NcclRangeListener>([this](void* base) { forget(base); });
  if (job_) {
    job_->attach(*this, options_.timeout);
  }
  watch_ = std::make_unique<Watch>([this] { poll(); });
}

void NcclGroup::install(int rank, c10::Device device, ncclComm_t comm) {
  add(rank, device).comm = comm;
  const int here = job_ ? 1 : size_;
  if (++installed_ == here) {
    open();
    opened_ = true;
  }
  while (!opened_) {
    std::this_thread::sleep_for(kPoll);
  }
}

/// Takes the lock. The first rank that hears of an error found here throws it as its own.
void NcclGroup::require_alive() {
  Lock lock(mutex_);
  if (!aborted_) {
    return;
  }
  if (own_failure_) {
    own_failure_ = false;
    throw CommError(*aborted_);
  }
  throw AbortedError(*aborted_);
}

void NcclGroup::fail(const std::string& reason) noexcept {
  {
    Lock lock(mutex_);
    own_failure_ = !aborted_;
  }
  abort(reason);
}

void NcclGroup::abort(const std::string& reason) noexcept {
  hear_abort(reason);
  if (job_) {
    job_->abort(path_, reason);
  }
  Watch::hurry();
}

void NcclGroup::hear_abort(const std::string& reason) noexcept {
  std::vector<std::shared_ptr<NcclGroup>> parts;
  {
    Lock lock(mutex_);
    if (aborted_) {
      return;
    }
    aborted_ = reason;
    // With a job the parts hear of it by their paths.
    for (const auto& [key, part] : job_ ? decltype(parts_){} : parts_) {
      if (auto alive = part.lock()) {
        parts.push_back(std::move(alive));
      }
    }
  }
  for (const auto& part : parts) {
    part->hear_abort(reason);
  }
}

/// Ends what runs on the devices. All communicators of the process in one call: they
/// wait for each other.
void NcclGroup::close() noexcept {
  {
    Lock lock(mutex_);
    if (closed_) {
      return;
    }
    closed_ = true;
  }
  std::vector<ncclComm_t> comms;
  for (const auto& rank : ranks_) {
    if (rank) {
      Lock lock(rank->mutex);
      if (rank->comm != nullptr) {
        comms.push_back(rank->comm);
        rank->comm = nullptr;
      }
    }
  }
  ncclGroupStart();
  for (ncclComm_t comm : comms) {
    ncclCommAbort(comm);
  }
  ncclGroupEnd();
}

void NcclGroup::finalize() noexcept {
  const auto deadline = Clock::now() + kFarewell;
  bool whole = true;
  for (const auto& rank : ranks_) {
    if (rank && rank->comm != nullptr) {
      whole = accepted(ncclCommFinalize(rank->comm)) && whole;
    }
  }
  for (const auto& rank : ranks_) {
    ncclResult_t state = ncclInProgress;
    while (rank && rank->comm != nullptr && state == ncclInProgress && Clock::now() < deadline) {
      if (ncclCommGetAsyncError(rank->comm, &state) != ncclSuccess) {
        state = ncclInternalError;
      }
      if (state == ncclInProgress) {
        std::this_thread::sleep_for(kPoll);
      }
    }
    whole = whole && (!rank || rank->comm == nullptr || state == ncclSuccess);
  }
  if (!whole) {
    close();
    return;
  }
  for (const auto& rank : ranks_) {
    if (rank && rank->comm != nullptr) {
      ncclCommDestroy(rank->comm);
      rank->comm = nullptr;
    }
  }
}

void NcclGroup::finish(int rank, ncclResult_t result, CommKind kind, int64_t sequence) {
  LocalRank& local = *ranks_[rank];
  const auto deadline = Clock::now() + options_.timeout;
  std::string detail;
  while (result == ncclInProgress) {
    require_alive();
    if (Clock::now() > deadline) {
      fail(late(InFlight{.kind = kind, .sequence = sequence}));
      require_alive();
    }
    std::this_thread::sleep_for(kPoll);
    Lock lock(local.mutex);
    if (local.comm != nullptr && ncclCommGetAsyncError(local.comm, &result) != ncclSuccess) {
      result = ncclInternalError;
    }
  }
  if (result != ncclSuccess) {
    require_alive();
    fail(str("group ", options_.name, ": ", name_of(kind), " #", sequence, " failed on rank ", rank,
             ": NCCL says ", ncclGetErrorString(result), ", ", ncclGetLastError(nullptr)));
    require_alive();
  }
}

/// The calls of one operation. Needs the rank's lock, inside a group call.
ncclResult_t NcclGroup::issue(LocalRank& rank, const Operation& operation, const Stream& stream) {
  const auto queue = c10::cuda::CUDAStream(*stream.native()).stream();
  const ncclRedOp_t op = operation.op == ReduceOp::kMax ? ncclMax : ncclSum;
  if (operation.kind == CommKind::kBarrier) {
    float* token = rank.token.data_ptr<float>();
    return ncclAllReduce(token, token, 1, ncclFloat32, ncclMax, rank.comm, queue);
  }
  ncclResult_t result = ncclSuccess;
  for (size_t i = 0; i < operation.out.size() && accepted(result); ++i) {
    const at::Tensor& out = operation.out[i];
    void* to = out.data_ptr();
    const void* from = operation.in.empty() ? to : operation.in[i].data_ptr();
    const auto count = static_cast<size_t>(out.numel());
    const ncclDataType_t type = type_of(out.scalar_type());
    if (count == 0) {
      continue;
    }
    switch (operation.kind) {
      case CommKind::kAllGather:
        result = ncclAllGather(from, to, count / size_, type, rank.comm, queue);
        break;
      case CommKind::kReduceScatter:
        result = ncclReduceScatter(from, to, count, type, op, rank.comm, queue);
        break;
      case CommKind::kAllReduce:
        result = ncclAllReduce(from, to, count, type, op, rank.comm, queue);
        break;
      case CommKind::kBroadcast:
        result = ncclBroadcast(from, to, count, type, operation.root, rank.comm, queue);
        break;
      case CommKind::kAllToAll:
        result = ncclAlltoAll(from, to, count / size_, type, rank.comm, queue);
        break;
      case CommKind::kBarrier:
      case CommKind::kSplit:
        break;
    }
  }
  return result;
}

void NcclGroup::register_buffers(LocalRank& rank, const Operation& operation) {
  for (const auto* tensors : {&operation.in, &operation.out}) {
    for (const at::Tensor& tensor : *tensors) {
      const auto range = nccl_range_of(tensor.data_ptr());
      if (!range || rank.registered.contains(range->base)) {
        continue;
      }
      void* handle = nullptr;
      const ncclResult_t result =
          ncclCommRegister(rank.comm, range->base, static_cast<size_t>(range->bytes), &handle);
      require<CommError>(accepted(result), "NCCL cannot register ", range->bytes,
                         " bytes: ", ncclGetErrorString(result));
      rank.registered[range->base] = handle;
    }
  }
}

/// A range is about to be freed.
void NcclGroup::forget(void* base) noexcept {
  for (const auto& rank : ranks_) {
    if (rank) {
      Lock lock(rank->mutex);
      const auto found = rank->registered.find(base);
      if (found != rank->registered.end()) {
        if (rank->comm != nullptr) {
          ncclCommDeregister(rank->comm, found->second);
        }
        rank->registered.erase(found);
      }
    }
  }
}

std::unique_ptr<Work> NcclGroup::start(int rank, Operation operation, const Stream& given,
                                       std::shared_ptr<NcclGroup> self) {
  LocalRank& local = *ranks_[rank];
  const Stream& stream = operation.kind == CommKind::kBarrier ? local.stream : given;
  require_alive();
  const int64_t sequence = local.joined++;
  ncclResult_t result = ncclSuccess;
  {
    Lock lock(local.mutex);
    if (local.comm != nullptr) {
      register_buffers(local, operation);
      const c10::DeviceGuard guard(local.device);
      ncclGroupStart();
      result = issue(local, operation, stream);
      const ncclResult_t ended = ncclGroupEnd();
      result = accepted(result) ? ended : result;
    }
  }
  finish(rank, result, operation.kind, sequence);
  require_alive();
  InFlight in_flight{operation.kind, sequence, Clock::now() + options_.timeout,
                     std::make_shared<Event>()};
  in_flight.done->record(stream);
  {
    Lock lock(local.mutex);
    local.in_flight.push_back(in_flight);
  }
  return std::make_unique<NcclWork>(std::move(self), std::move(in_flight), std::move(operation),
                                    rank);
}

void NcclGroup::wait(const InFlight& operation, const Stream& stream) {
  if (stream.on_cpu()) {
    while (!operation.done->done()) {
      require_alive();
      std::this_thread::sleep_for(kPoll);
    }
  }
  require_alive();
  stream.wait(*operation.done);
}

bool NcclGroup::ready(const InFlight& operation) const noexcept {
  {
    Lock lock(mutex_);
    if (aborted_) {
      return true;
    }
  }
  return operation.done->done();
}

/// The group of one color, shared by its ranks in this process.
std::shared_ptr<NcclGroup> NcclGroup::part_of(int64_t number, int color, int size,
                                              const std::string& name) {
  CommOptions options = options_;
  options.name = str(name, ".", color);
  Lock lock(mutex_);
  auto& known = parts_[{number, color}];
  auto part = known.lock();
  if (!part) {
    part = std::make_shared<NcclGroup>(job_, str(path_, "/", number, ".", color), size, options);
    known = part;
  }
  return part;
}

// The new communicator of a split, once NCCL has written it and made it ready.
ncclComm_t NcclGroup::await_part(int rank, int64_t sequence) {
  LocalRank& local = *ranks_[rank];
  const auto deadline = Clock::now() + options_.timeout;
  while (true) {
    require_alive();
    ncclResult_t result = ncclInProgress;
    ncclComm_t comm = nullptr;
    {
      Lock lock(local.mutex);
      comm = local.splitting;
      if (comm != nullptr && ncclCommGetAsyncError(comm, &result) != ncclSuccess) {
        result = ncclInternalError;
      }
    }
    if (result == ncclSuccess) {
      return comm;
    }
    if (result != ncclInProgress) {
      finish(rank, result, CommKind::kSplit, sequence);
    }
    if (Clock::now() > deadline) {
      fail(late(InFlight{.kind = CommKind::kSplit, .sequence = sequence}));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

std::unique_ptr<Communicator> NcclGroup::split(int rank, int color, const std::string& name) {
  LocalRank& local = *ranks_[rank];
  require_alive();
  const int64_t sequence = local.joined++;
  const int64_t number = local.splits++;
  const c10::DeviceGuard guard(local.device);
  ncclConfig_t config = config_of();
  ncclResult_t result = ncclSuccess;
  {
    Lock lock(local.mutex);
    local.splitting = nullptr;
    if (local.comm != nullptr) {
      result = ncclCommSplit(local.comm, color, rank, &local.splitting, &config);
    }
  }
  finish(rank, result, CommKind::kSplit, sequence);
  const ncclComm_t comm = await_part(rank, sequence);
  int part_size = 0;
  int part_rank = 0;
  ncclCommCount(comm, &part_size);
  ncclCommUserRank(comm, &part_rank);
  auto part = part_of(number, color, part_size, name);
  part->install(part_rank, local.device, comm);
  return std::make_unique<NcclCommunicator>(part, part_rank);
}

std::string NcclGroup::late(const InFlight& operation) {
  if (operation.sequence == kStartUp) {
    return str("group ", options_.name, ": NCCL's start-up timed out after ",
               static_cast<double>(options_.timeout.count()) / 1000, " s");
  }
  std::vector<int64_t> reached;
  if (job_) {
    reached = job_->progress(path_, size_);
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (ranks_[rank]) {
      reached.resize(size_);
      reached[rank] = ranks_[rank]->joined;
    }
  }
  return timeout_sentence(options_, operation.kind, operation.sequence, size_, reached);
}

/// On the watchdog thread.
void NcclGroup::poll() noexcept {
  bool aborted = false;
  {
    Lock lock(mutex_);
    aborted = aborted_.has_value();
  }
  if (aborted) {
    close();
    return;
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (ranks_[rank]) {
      try {
        look_after(rank);
      } catch (const std::exception& error) {
        fail(str("group ", options_.name, ": the device of rank ", rank,
                 " has failed: ", first_line(error)));
      }
    }
  }
}

void NcclGroup::look_after(int rank) {
  LocalRank& local = *ranks_[rank];
  std::optional<InFlight> oldest;
  ncclResult_t state = ncclSuccess;
  {
    Lock lock(local.mutex);
    while (!local.in_flight.empty() && local.in_flight.front().done->done()) {
      local.in_flight.pop_front();
    }
    if (!local.in_flight.empty()) {
      oldest = local.in_flight.front();
    }
    if (local.comm != nullptr && ncclCommGetAsyncError(local.comm, &state) != ncclSuccess) {
      state = ncclInternalError;
    }
  }
  if (state != ncclSuccess && state != ncclInProgress) {
    fail(str("group ", options_.name, ": rank ", rank, ": NCCL says ", ncclGetErrorString(state),
             ", ", ncclGetLastError(nullptr)));
  } else if (oldest && Clock::now() > oldest->deadline) {
    fail(late(*oldest));
  }
}

/// Creates the communicators of the ranks that were added, in one grouped call.
void create(const std::shared_ptr<NcclGroup>& group, ncclUniqueId id,
            const std::vector<std::pair<int, LocalRank*>>& ranks) {
  ncclConfig_t config = config_of();
  ncclGroupStart();
  ncclResult_t result = ncclSuccess;
  for (const auto& [rank, local] : ranks) {
    if (accepted(result)) {
      const c10::DeviceGuard guard(local->device);
      result = ncclCommInitRankConfig(&local->comm, group->size(), id, rank, &config);
    }
  }
  const ncclResult_t ended = ncclGroupEnd();
  result = accepted(result) ? ended : result;
  require<CommError>(accepted(result), "group ", group->options().name,
                     ": NCCL cannot be started: ", ncclGetErrorString(result), ", ",
                     ncclGetLastError(nullptr));
  for (const auto& [rank, local] : ranks) {
    group->finish(rank, ncclInProgress, CommKind::kBarrier, kStartUp);
  }
  group->open();
}

}  // namespace

bool nccl_available() {
  return true;
}

std::unique_ptr<Communicator> make_nccl(const Rendezvous& rendezvous, CommOptions options) {
  prepare_environment();
  const auto timeout = options.timeout;
  auto job = JobStore::join(rendezvous, options);
  const std::string path = job->next_path();
  auto store = job->connection(path, timeout);
  ncclUniqueId id;
  if (rendezvous.rank == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    require<CommError>(result == ncclSuccess,
                       "NCCL cannot be started: ", ncclGetErrorString(result), ", ",
                       ncclGetLastError(nullptr));
    store->set("id", std::vector<uint8_t>(id.internal, id.internal + sizeof(id.internal)));
  } else {
    const std::vector<uint8_t> bytes = store->get("id");
    require<CommError>(bytes.size() == sizeof(id.internal), "rank 0 sent ", bytes.size(),
                       " bytes as NCCL's id");
    std::memcpy(id.internal, bytes.data(), bytes.size());
  }
  auto group = std::make_shared<NcclGroup>(job, path, rendezvous.world, std::move(options));
  LocalRank& local = group->add(rendezvous.rank, this_rank().device);
  create(group, id, {{rendezvous.rank, &local}});
  return std::make_unique<NcclCommunicator>(group, rendezvous.rank);
}

std::vector<std::unique_ptr<Communicator>> make_nccl_thread_group(
    const std::vector<c10::Device>& devices, CommOptions options) {
  prepare_environment();
  const int size = static_cast<int>(devices.size());
  auto group = std::make_shared<NcclGroup>(nullptr, "threads", size, std::move(options));
  std::vector<std::pair<int, LocalRank*>> ranks;
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back(rank, &group->add(rank, devices[rank]));
    communicators.push_back(std::make_unique<NcclCommunicator>(group, rank));
  }
  ncclUniqueId id;
  const ncclResult_t result = ncclGetUniqueId(&id);
  require<CommError>(result == ncclSuccess, "NCCL cannot be started: ", ncclGetErrorString(result),
                     ", ", ncclGetLastError(nullptr));
  create(group, id, ranks);
  return communicators;
}

}  // namespace reknit
