// What the library asks of a group of ranks. Backends: threads, gloo, nccl; fault
// wraps any of them.
#pragma once

#include "reknit/comm/pending.h"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace reknit {

enum class ReduceOp { kSum, kMax };

/// One all-gather: `full` is `size()` equal pieces, piece r comes from rank r's
/// `shard`. `shard` may be piece `rank()` of `full` itself (in place). Contiguous.
struct GatherPair {
  at::Tensor full;
  at::Tensor shard;
};

/// One reduce-scatter: piece `rank()` of the sum over ranks of `full` goes to
/// `shard`. `shard` may be that piece of `full` itself (in place). What is left in
/// the rest of `full` is undefined: it is consumed. Contiguous.
struct ScatterPair {
  at::Tensor full;
  at::Tensor shard;
};

/// What this rank has taken part in, by operation, since construction.
struct CommCounts {
  struct Entry {
    int64_t count = 0;
    int64_t bytes = 0;   ///< payload: full size for gathers and reductions
    int64_t inside = 0;  ///< bytes received from ranks of its node; see topology.h
    int64_t across = 0;  ///< bytes received from ranks of other nodes

    Entry& operator+=(const Entry& other);
    Entry& operator-=(const Entry& other);
  };
  Entry all_gather, reduce_scatter, all_reduce, broadcast, all_to_all, barrier;

  CommCounts& operator+=(const CommCounts& other);
  CommCounts& operator-=(const CommCounts& other);
  /// Over all operations.
  Entry total() const;
};

struct CommOptions {
  std::string name = "world";  ///< appears in errors and traces
  std::chrono::milliseconds timeout{600'000};
  std::vector<int> nodes = {};  ///< of each rank; empty: all on one node
};

/// A group of ranks that joins collectives in the same order. One thread per rank
/// uses it. All calls of a rank go out in program order; sums are taken in rank
/// order where the backend is deterministic (threads).
///
/// Operations start without blocking the host and are ordered after the work
/// already queued on `stream`; `owner` (slots, tensors: whatever keeps the memory
/// alive and unreachable) moves into the Pending and comes back out of wait().
/// A grouped call (several pairs) is one operation.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const CommOptions& options() const = 0;
  virtual const CommCounts& counts() const = 0;

  template <class Owner>
  Pending<Owner> all_gather(Owner owner, const std::vector<GatherPair>& pairs,
                            const Stream& stream) {
    return {std::move(owner), start_all_gather(pairs, stream)};
  }
  template <class Owner>
  Pending<Owner> reduce_scatter(Owner owner, const std::vector<ScatterPair>& pairs,
                                const Stream& stream) {
    return {std::move(owner), start_reduce_scatter(pairs, stream)};
  }
  /// In place on every tensor of `tensors`.
  Pending<std::vector<at::Tensor>> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op,
                                              const Stream& stream);
  Pending<std::vector<at::Tensor>> broadcast(std::vector<at::Tensor> tensors, int root,
                                             const Stream& stream);
  /// Piece r of `in` goes to rank r; piece r of `out` comes from rank r.
  Pending<at::Tensor> all_to_all(at::Tensor out, at::Tensor in, const Stream& stream);
  /// Blocks the host until all ranks are here.
  void barrier();

  /// Blocks the host until the work now queued on `stream` is done, or throws as
  /// require_alive as soon as the group is aborted: the device may then still be at work.
  void synchronize(const Stream& stream);
  /// Throws what the group was aborted with, if it was. Local.
  virtual void require_alive() = 0;

  /// Collective over the group: every rank is in one new group and names its `members`, in
  /// the order of their new ranks. Its name is `name`, a dot and the lowest member. Throws
  /// StateError for a list without this rank, CommError where the lists contradict.
  virtual std::unique_ptr<Communicator> split(const std::vector<int>& members,
                                              const std::string& name) = 0;

  /// Fails this group and those split from it on every rank, at once, with `reason` (the
  /// first one wins): blocked waits and every later call throw AbortedError, which is a
  /// CommError. Local, thread-safe, never blocks.
  virtual void abort(const std::string& reason) noexcept = 0;

 protected:
  virtual std::unique_ptr<Work> start_all_gather(const std::vector<GatherPair>& pairs,
                                                 const Stream& stream) = 0;
  virtual std::unique_ptr<Work> start_reduce_scatter(const std::vector<ScatterPair>& pairs,
                                                     const Stream& stream) = 0;
  virtual std::unique_ptr<Work> start_all_reduce(const std::vector<at::Tensor>& tensors,
                                                 ReduceOp op, const Stream& stream) = 0;
  virtual std::unique_ptr<Work> start_broadcast(const std::vector<at::Tensor>& tensors, int root,
                                                const Stream& stream) = 0;
  virtual std::unique_ptr<Work> start_all_to_all(const at::Tensor& out, const at::Tensor& in,
                                                 const Stream& stream) = 0;
  virtual std::unique_ptr<Work> start_barrier() = 0;

  friend class FaultCommunicator;  // forwards to the protected half of another
};

}  // namespace reknit
