// Runs a test body on several thread ranks with a communicator each.
#pragma once

#include "reknit/base/rank.h"
#include "reknit/comm/fault.h"
#include "reknit/comm/threads.h"
#include "reknit/comm/topology.h"
#include "tests/support/device.h"

#include <functional>
#include <memory>
#include <vector>

namespace reknit::testing_support {

using RankBody = std::function<void(std::shared_ptr<Communicator> world)>;

/// `body` on `world` ranks, all on the test's device and spread over `nodes`; the first error is
/// rethrown here. `faults` (may be empty) disturbs every operation of every group.
inline void on_ranks(int world, const RankBody& body,
                     std::chrono::milliseconds timeout = patience(), const FaultPlan& faults = {},
                     int nodes = 1) {
  auto made = make_thread_group(
      world, {.name = "world", .timeout = timeout, .nodes = spread_over_nodes(world, nodes)});
  std::vector<std::shared_ptr<Communicator>> comms;
  for (auto& comm : made) {
    comms.push_back(faults ? make_fault(std::move(comm), faults) : std::move(comm));
  }
  run_ranks(
      std::vector<c10::Device>(world, test_device()), [&](int rank) { body(comms[rank]); },
      [&](const std::string& reason) {
        for (const auto& comm : comms) {
          comm->abort(reason);
        }
      });
}

}  // namespace reknit::testing_support
