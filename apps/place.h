// Where a command runs: devices, ranks and nodes, from flags, launcher and machine.
#pragma once

#include "apps/devices.h"
#include "reknit/comm/launcher.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace reknit {

struct RunOptions;

struct Place {
  bool cuda = false;
  int64_t ranks = 1;
  std::string ranks_from = "default";
  int64_t nodes = 1;
  std::string nodes_from = "default";
  std::optional<LaunchedProcess> launched;  ///< none: the ranks are threads of this process

  /// Whether this process holds rank 0, which speaks and writes for all.
  bool leads() const { return !launched || launched->rendezvous.rank == 0; }
  /// One device for each rank of this process: all ranks, or the launched one's.
  std::vector<c10::Device> devices() const;
  int64_t gpus = 0;  ///< visible ones
};

/// Throws UsageError: a GPU that is present but unusable (unless --device cpu), more
/// ranks than GPUs without --share-gpus, --ranks under a launcher, ranks that do not
/// spread evenly over nodes, a launcher's environment that contradicts itself.
Place resolve_place(const RunOptions& options);

/// The same for given facts, for tests: GPUs that the runtime shows, sentences about
/// unusable ones, and what the launcher says.
Place resolve_place(const RunOptions& options, const std::vector<GpuInfo>& gpus,
                    const std::vector<std::string>& unusable,
                    const std::optional<LaunchedProcess>& launched);

}  // namespace reknit
