// Tests whose ranks are processes: the test runs again in each of them.
#pragma once

#include "reknit/comm/gloo.h"

#include <optional>
#include <vector>

namespace reknit::test {

/// The place of this process if run_in_processes started it.
std::optional<Rendezvous> process_place();

/// Starts the running test again in `size` new processes that meet on this machine and
/// returns their exit codes (128 + signal for a killed one). Prints the output of
/// those that end with neither 0 nor the signal 9.
std::vector<int> run_in_processes(int size);

}  // namespace reknit::test
