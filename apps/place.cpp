#include "apps/place.h"

#include "apps/options.h"
#include "reknit/base/format.h"

namespace reknit {
namespace {

bool choose_cuda(const RunOptions& options, const std::vector<GpuInfo>& gpus,
                 const std::vector<std::string>& unusable) {
  if (options.device == "cpu") {
    return false;
  }
  if (!unusable.empty()) {
    throw UsageError(unusable.front(), "pass --device cpu to run on the CPU; reknit env says more");
  }
  if (options.device == "cuda" && gpus.empty()) {
    throw UsageError(built_with_cuda() ? "--device cuda: there is no GPU"
                                       : "--device cuda: this build has no CUDA",
                     "pass --device cpu; reknit env says what is missing");
  }
  return !gpus.empty();
}

void place_launched(const RunOptions& options, Place& place) {
  const LaunchedProcess& process = *place.launched;
  if (options.ranks) {
    throw UsageError(str("--ranks ", *options.ranks, " under ", process.launcher,
                         ", which started ", process.rendezvous.world, " ranks"),
                     "leave --ranks out: the launcher decides");
  }
  place.ranks = process.rendezvous.world;
  place.ranks_from = process.launcher;
  // Elsewhere there are fewer or more: every process would divide to another number of nodes.
  if (place.ranks % process.local_world != 0 && !options.nodes) {
    throw UsageError(str(process.launcher, " started ", place.ranks, " ranks, ",
                         process.local_world, " of them on this node: the nodes are uneven"),
                     "start as many on each node, or pass --nodes 1 to treat them as one");
  }
  place.nodes = place.ranks / process.local_world;
  place.nodes_from = process.launcher;
}

}  // namespace

std::vector<c10::Device> Place::devices() const {
  auto device = [&](int64_t local) {
    return cuda ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(local % gpus))
                : c10::Device(c10::kCPU);
  };
  if (launched) {
    return {device(launched->local_rank)};
  }
  std::vector<c10::Device> out;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    out.push_back(device(rank));
  }
  return out;
}

Place resolve_place(const RunOptions& options, const std::vector<GpuInfo>& gpus,
                    const std::vector<std::string>& unusable,
                    const std::optional<LaunchedProcess>& launched) {
  Place place;
  place.cuda = choose_cuda(options, gpus, unusable);
  place.gpus = static_cast<int64_t>(gpus.size());
  place.launched = launched;
  if (launched) {
    place_launched(options, place);
  } else if (options.ranks) {
    place.ranks = *options.ranks;
    place.ranks_from = "--ranks";
  } else if (place.cuda) {
    place.ranks = place.gpus;
    place.ranks_from = "visible GPUs";
  }
  if (options.nodes) {
    place.nodes = *options.nodes;
    place.nodes_from = "--nodes";
  }
  const int64_t here = launched ? launched->local_world : place.ranks;
  // A launcher may show each task its own GPU only: then that one is device 0.
  const bool own_gpu = launched && place.gpus == 1;
  if (place.cuda && here > place.gpus && !own_gpu && !options.share_gpus) {
    throw UsageError(str(plural(here, "rank"), " (", place.ranks_from, ") on ",
                         plural(place.gpus, "visible GPU")),
                     "pass --share-gpus to put several ranks on one GPU");
  }
  if (place.ranks % place.nodes != 0) {
    throw UsageError(
        str(plural(place.ranks, "rank"), " (", place.ranks_from, ") cannot be spread evenly over ",
            plural(place.nodes, "node"), " (", place.nodes_from, ")"),
        "pass --nodes with a divisor of the ranks");
  }
  return place;
}

Place resolve_place(const RunOptions& options) {
  const std::vector<GpuInfo> gpus =
      options.device == "cpu" ? std::vector<GpuInfo>() : cuda_devices();
  return resolve_place(options, gpus, unusable_gpus(gpus), launched_process());
}

}  // namespace reknit
