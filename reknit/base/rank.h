// What a rank is, and the one function that starts rank threads.
#pragma once

#include "reknit/base/stream.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace reknit {

/// The calling rank's place and queues. Every wait in the library names one of
/// these streams. On CPU all of them are the calling thread.
struct RankContext {
  int rank = 0;
  int world = 1;
  c10::Device device = c10::kCPU;
  Stream compute;  ///< forward, backward, update
  Stream gather;   ///< parameter all-gathers
  Stream reduce;   ///< gradient reductions
  Stream copy;     ///< host transfers
};

/// The context of the calling thread (rank 0 of 1 on CPU outside of a rank).
const RankContext& this_rank();

/// Makes the calling thread a rank for the scope: device, streams, no-grad mode, one CPU thread
/// for tensor operations (that one stays), the log's rank tag; on a GPU also the process's
/// choices of arithmetic.
class RankScope {
 public:
  RankScope(int rank, int world, c10::Device device);
  ~RankScope();
  RankScope(const RankScope&) = delete;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

/// Runs `body` on `devices.size()` threads, each inside a RankScope, and returns when all have
/// ended. Rethrows the error of the rank that failed first (an AbortedError only if there is no
/// other), a CommError for one that the system starts no thread for; `on_error` (may be empty)
/// is called once, at once, by that rank, to free the others (abort their communicators).
void run_ranks(const std::vector<c10::Device>& devices, const std::function<void(int rank)>& body,
               const std::function<void(const std::string& reason)>& on_error = {});

}  // namespace reknit
