// Starts the ranks of this process with the communicator and memory that fit them.
#pragma once

#include "reknit/base/error.h"
#include "reknit/comm/gloo.h"
#include "reknit/store/slot_pool.h"

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace reknit {

/// Which ranks this process runs: one launched by torchrun and the like, or all of them
/// as threads.
struct RankPlan {
  std::vector<c10::Device> devices;      ///< one per rank of this process
  std::optional<Rendezvous> rendezvous;  ///< of a launched process; then one device
  std::chrono::milliseconds timeout{600'000};
  bool deterministic = false;  ///< on GPUs too: fix_order_of_gpu_sums
  int nodes = 1;               ///< that all ranks are spread over, in consecutive runs
  /// Tells the user of an error of the body and returns the exit code. If given, run_on_ranks
  /// has one of the launched processes call it and then throws SaidError in all of them. Where
  /// the ranks do not even meet, each throws what it has met with.
  std::function<int(const std::exception&)> report;
};

/// The run has failed and the user has been told, by this process or by another one: all
/// that is left is to end with `code()`.
struct SaidError : Error {
  explicit SaidError(int code) : Error(static_cast<ExitCode>(code), "the run has failed") {}
};

/// What a rank finds when it starts.
struct RankEnvironment {
  std::shared_ptr<Communicator> world;
  SlotPool::Allocator allocator;  ///< memory that the communicator moves fastest
};

/// Runs `body` on every rank of the plan and returns when all have ended; rethrows the
/// first error after the others have been freed. Backends: launched processes use NCCL on
/// GPUs and Gloo on CPU; threads use NCCL with a GPU each, and otherwise shared memory.
void run_on_ranks(const RankPlan& plan, const std::function<void(RankEnvironment&)>& body);

/// One text of each rank, on every rank, in rank order. Collective; blocks the host.
std::vector<std::string> gather_texts(Communicator& world, const std::string& mine);

/// Rank 0's text on every rank. Collective; blocks the host.
std::string broadcast_text(Communicator& world, const std::string& text);

/// The largest of the ranks' numbers, on every rank. Collective; blocks the host.
int64_t largest(Communicator& world, int64_t mine);

/// The ranks' numbers reduced place by place, on every rank. Collective; blocks the host.
std::vector<double> reduce_over_ranks(Communicator& world, const std::vector<double>& mine,
                                      ReduceOp op = ReduceOp::kSum);

}  // namespace reknit
