// Faults around any communicator: delays, reordered completion, failures.
#pragma once

#include "reknit/comm/operation.h"

#include <functional>

namespace reknit {

/// What happens to one operation of one rank.
struct Fault {
  std::chrono::milliseconds delay_start{0};  ///< before the rank joins
  /// Before wait() returns; counted from when start, ready() or wait() first finds it complete.
  std::chrono::milliseconds delay_result{0};
  bool fail = false;        ///< the start throws CommError and the group aborts
  bool never_join = false;  ///< the rank stays away: others time out, and so does it
  /// Called on every tensor that the operation wrote, after wait (e.g. plant an inf).
  std::function<void(at::Tensor&)> corrupt;
};

/// Decides per operation; `index` counts this rank's operations on the group from 0.
/// Called on the rank's thread.
using FaultPlan = std::function<Fault(CommKind kind, int64_t index, int rank)>;

/// Wraps `inner`; groups made by split() are wrapped too, with the same plan. split()
/// itself is never disturbed. counts() is of the wrapper.
std::unique_ptr<Communicator> make_fault(std::unique_ptr<Communicator> inner, FaultPlan plan);

}  // namespace reknit
