#include "reknit/comm/nccl.h"

#include "reknit/base/error.h"
#include "reknit/base/rank.h"
#include "reknit/comm/nccl_group.h"

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdlib>
#include <cstring>

namespace reknit {
namespace {

/// NVLink multicast stays off unless the environment wants it.
void prepare_environment() {
  setenv("NCCL_NVLS_ENABLE", "0", 0);
}

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
  void require_alive() override { group_->require_alive(); }
  std::unique_ptr<Communicator> split(const std::vector<int>& members,
                                      const std::string& name) override {
    auto [part, part_rank] = group_->split(rank_, members, name);
    return std::make_unique<NcclCommunicator>(std::move(part), part_rank);
  }

 protected:
  std::unique_ptr<Work> start(Operation operation, const Stream& stream) override {
    InFlight in_flight = group_->start(rank_, operation, stream);
    return std::make_unique<NcclWork>(group_, std::move(in_flight), std::move(operation), rank_);
  }

 private:
  std::shared_ptr<NcclGroup> group_;
  int rank_;
};

/// Creates the communicators of the ranks that were added, in one grouped call.
void create(const std::shared_ptr<NcclGroup>& group, ncclUniqueId id,
            const std::vector<std::pair<int, LocalRank*>>& ranks) {
  ncclConfig_t config = nccl_config();
  NcclCalls calls;
  ncclResult_t result = ncclSuccess;
  for (const auto& [rank, local] : ranks) {
    if (accepted(result)) {
      const c10::DeviceGuard guard(local->device);
      result = ncclCommInitRankConfig(&local->comm, group->size(), id, rank, &config);
    }
  }
  result = calls.end(result);
  require<CommError>(accepted(result), "group ", group->options().name,
                     ": NCCL cannot be started: ", ncclGetErrorString(result), ", ",
                     ncclGetLastError(nullptr));
  for (const auto& [rank, local] : ranks) {
    group->finish(rank, local->comm, ncclInProgress, CommKind::kBarrier, kStartUp);
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
  const PatientStore store = job->connection(path, timeout);
  ncclUniqueId id;
  if (rendezvous.rank == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    require<CommError>(result == ncclSuccess,
                       "NCCL cannot be started: ", ncclGetErrorString(result), ", ",
                       ncclGetLastError(nullptr));
    store.set("id", std::string(id.internal, sizeof(id.internal)));
  } else {
    const std::string bytes = store.get("id");
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
