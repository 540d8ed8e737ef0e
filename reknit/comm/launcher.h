// What the launcher's environment says: torchrun, mpirun, srun, or none.
#pragma once

#include "reknit/comm/gloo.h"

#include <functional>
#include <optional>

namespace reknit {

/// The place of this process in a job started by a launcher.
struct LaunchedProcess {
  Rendezvous rendezvous;
  int local_rank = 0;
  int local_world = 1;
  std::string launcher;  ///< "torchrun", "mpirun", "srun"
};

/// Reads variables through `get` (std::getenv by default) in the contract's order:
/// RANK.. of torchrun; OMPI_ and PMI_; SLURM_. A world of 1 is no launcher. Partly set
/// or contradicting variables: UsageError naming them.
std::optional<LaunchedProcess> launched_process(
    const std::function<const char*(const char*)>& get = {});

}  // namespace reknit
