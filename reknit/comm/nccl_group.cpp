#include "reknit/comm/nccl_group.h"

#include "reknit/base/error.h"
#include "reknit/base/error_text.h"
#include "reknit/base/pause.h"
#include "reknit/comm/recorder.h"

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <thread>

namespace reknit {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kPoll = 20us;
constexpr auto kFarewell = 10s;  ///< for the other ranks to finish what was started

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

std::vector<ncclDataType_t> types_of(const Operation& operation) {
  std::vector<ncclDataType_t> types;
  for (const at::Tensor& tensor : operation.out) {
    types.push_back(type_of(tensor.scalar_type()));
  }
  return types;
}

/// Where NCCL's own memory holds the tensors. Takes the lock of the list of ranges, which a
/// range's end holds while it takes those of ranks: so never under a rank's lock.
std::vector<NcclRange> ranges_of(const Operation& operation) {
  std::vector<NcclRange> ranges;
  for (const auto* tensors : {&operation.in, &operation.out}) {
    for (const at::Tensor& tensor : *tensors) {
      if (const auto range = nccl_range_of(tensor.data_ptr())) {
        ranges.push_back(*range);
      }
    }
  }
  return ranges;
}

}  // namespace

bool accepted(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

ncclConfig_t nccl_config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

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
  for (Pause pause; !opened_; pause()) {
    require_alive();
  }
}

void NcclGroup::require_alive() {
  Lock lock(mutex_);
  aborted_.require_none();
}

/// Because of an error that was found here.
void NcclGroup::fail(const std::string& reason) noexcept {
  end(reason, true);
}

void NcclGroup::abort(const std::string& reason) noexcept {
  end(reason, false);
}

void NcclGroup::end(const std::string& reason, bool own) noexcept {
  note_abort(reason, own);
  if (job_) {
    job_->abort(path_, reason);
  }
  Watch::hurry();
}

void NcclGroup::hear_abort(const std::string& reason) noexcept {
  note_abort(reason, false);
}

void NcclGroup::note_abort(const std::string& reason, bool own) noexcept {
  std::vector<std::shared_ptr<NcclGroup>> parts;
  {
    Lock lock(mutex_);
    if (!aborted_.set(reason, own)) {
      return;
    }
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
  NcclCalls calls;
  for (ncclComm_t comm : comms) {
    ncclCommAbort(comm);
  }
}

void NcclGroup::finalize() noexcept {
  const auto deadline = Clock::now() + kFarewell;
  bool whole = true;
  for (const auto& rank : ranks_) {
    if (rank && rank->comm != nullptr) {
      whole = whole && settled(*rank, deadline) && accepted(ncclCommFinalize(rank->comm));
    }
  }
  for (const auto& rank : ranks_) {
    ncclResult_t state = ncclInProgress;
    while (whole && rank && rank->comm != nullptr && state == ncclInProgress) {
      whole = ncclCommGetAsyncError(rank->comm, &state) == ncclSuccess && accepted(state) &&
              Clock::now() < deadline;
      std::this_thread::sleep_for(kPoll);
    }
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

/// True once the device has nothing of this rank left to do.
bool NcclGroup::settled(LocalRank& rank, Clock::time_point deadline) noexcept {
  try {
    for (const InFlight& operation : rank.in_flight) {
      while (!operation.done->done()) {
        if (Clock::now() > deadline) {
          return false;
        }
        std::this_thread::sleep_for(kPoll);
      }
    }
  } catch (const std::exception&) {
    return false;  // the device has failed
  }
  return true;
}

void NcclGroup::finish(int rank, ncclComm_t comm, ncclResult_t result, CommKind kind,
                       int64_t sequence) {
  LocalRank& local = *ranks_[rank];
  const auto deadline = Clock::now() + options_.timeout;
  for (Pause pause; result == ncclInProgress; pause()) {
    require_alive();
    if (Clock::now() > deadline) {
      fail(late(InFlight{.kind = kind, .sequence = sequence}));
      require_alive();
    }
    Lock lock(local.mutex);
    if (local.comm != nullptr && ncclCommGetAsyncError(comm, &result) != ncclSuccess) {
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

/// The calls of one operation, whose outputs have `types`. Needs the rank's lock.
ncclResult_t NcclGroup::issue(LocalRank& rank, const Operation& operation,
                              const std::vector<ncclDataType_t>& types, const Stream& stream) {
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
    const ncclDataType_t type = types[i];
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

/// Needs the rank's lock.
void NcclGroup::register_buffers(LocalRank& rank, const std::vector<NcclRange>& ranges) {
  for (const NcclRange& range : ranges) {
    if (rank.registered.contains(range.base)) {
      continue;
    }
    void* handle = nullptr;
    const ncclResult_t result =
        ncclCommRegister(rank.comm, range.base, static_cast<size_t>(range.bytes), &handle);
    require<CommError>(accepted(result), "NCCL cannot register ", range.bytes,
                       " bytes: ", ncclGetErrorString(result));
    rank.registered[range.base] = handle;
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

InFlight NcclGroup::start(int rank, const Operation& operation, const Stream& given) {
  LocalRank& local = *ranks_[rank];
  const Stream& stream = operation.kind == CommKind::kBarrier ? local.stream : given;
  require_alive();
  const std::vector<ncclDataType_t> types = types_of(operation);
  const std::vector<NcclRange> ranges = ranges_of(operation);
  const int64_t sequence = local.joined++;
  ncclResult_t result = ncclSuccess;
  ncclComm_t comm = nullptr;
  {
    Lock lock(local.mutex);
    comm = local.comm;
    if (comm != nullptr) {
      register_buffers(local, ranges);
      const c10::DeviceGuard guard(local.device);
      NcclCalls calls;
      result = calls.end(issue(local, operation, types, stream));
    }
  }
  finish(rank, comm, result, operation.kind, sequence);
  require_alive();
  InFlight in_flight{operation.kind, sequence, Clock::now() + options_.timeout,
                     std::make_shared<Event>()};
  in_flight.done->record(stream);
  if (operation.record) {
    operation.record->finish(stream);
  }
  {
    Lock lock(local.mutex);
    local.in_flight.push_back(in_flight);
  }
  return in_flight;
}

void NcclGroup::wait(const InFlight& operation, const Stream& stream) {
  if (stream.on_cpu()) {
    for (Pause pause; !operation.done->done(); pause()) {
      require_alive();
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
  try {
    return operation.done->done();
  } catch (const std::exception&) {
    return true;  // the device has failed: wait() throws
  }
}

/// The group whose lowest member is `lowest`, shared by its ranks in this process.
std::shared_ptr<NcclGroup> NcclGroup::part_of(int64_t number, int lowest, int size,
                                              const CommOptions& options) {
  Lock lock(mutex_);
  auto& known = parts_[{number, lowest}];
  auto part = known.lock();
  if (!part) {
    part = std::make_shared<NcclGroup>(job_, str(path_, "/", number, ".", lowest), size, options);
    known = part;
  }
  return part;
}

/// The new communicator of a split, once NCCL has written it and made it ready.
ncclComm_t NcclGroup::await_part(int rank, int64_t sequence) {
  LocalRank& local = *ranks_[rank];
  const auto deadline = Clock::now() + options_.timeout;
  for (Pause pause;; pause()) {
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
      finish(rank, comm, result, CommKind::kSplit, sequence);
    }
    if (Clock::now() > deadline) {
      fail(late(InFlight{.kind = CommKind::kSplit, .sequence = sequence}));
    }
  }
}

std::pair<std::shared_ptr<NcclGroup>, int> NcclGroup::split(int rank,
                                                            const std::vector<int>& members,
                                                            const std::string& name) {
  const CommOptions options = part_options(options_, size_, rank, members, name);
  const int lowest = *std::min_element(members.begin(), members.end());
  const auto place = std::find(members.begin(), members.end(), rank) - members.begin();
  LocalRank& local = *ranks_[rank];
  require_alive();
  const int64_t sequence = local.joined++;
  const int64_t number = local.splits++;
  const c10::DeviceGuard guard(local.device);
  ncclConfig_t config = nccl_config();
  ncclResult_t result = ncclSuccess;
  ncclComm_t parent = nullptr;
  {
    Lock lock(local.mutex);
    parent = local.comm;
    local.splitting = nullptr;
    if (parent != nullptr) {
      result = ncclCommSplit(parent, lowest, static_cast<int>(place), &local.splitting, &config);
    }
  }
  finish(rank, parent, result, CommKind::kSplit, sequence);
  const ncclComm_t comm = await_part(rank, sequence);
  int part_size = 0;
  int part_rank = 0;
  ncclCommCount(comm, &part_size);
  ncclCommUserRank(comm, &part_rank);
  if (part_size != static_cast<int>(members.size()) || part_rank != place) {
    fail(split_sentence(options_, sequence, rank, members));
    require_alive();
  }
  auto part = part_of(number, lowest, part_size, options);
  require_alive();  // an abort from here on is told to the part too
  part->install(part_rank, local.device, comm);
  return {part, part_rank};
}

std::string NcclGroup::late(const InFlight& operation) {
  if (operation.sequence == kStartUp) {
    return str("group ", options_.name, ": NCCL's start-up timed out after ",
               static_cast<double>(options_.timeout.count()) / 1000, " s");
  }
  std::vector<int64_t> reached;
  if (job_) {
    reached = job_->progress(path_, size_);
    if (reached.empty()) {
      return str(timeout_sentence(options_, operation.kind, operation.sequence, size_, reached),
                 ": ", job_->without_store());
    }
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
    aborted = static_cast<bool>(aborted_);
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

}  // namespace reknit
