// The backends that the contract suite runs on, and how it runs a body on every rank.
#pragma once

#include "reknit/comm/communicator.h"

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace reknit::test {

/// A group of `size` ranks of one kind.
struct Backend {
  std::string name;
  int size;
  std::chrono::milliseconds patience;  ///< a timeout that only a missing rank exceeds
  /// Runs `body` on every rank of a new group and returns when all have ended.
  std::function<void(const CommOptions& options, const std::function<void(Communicator&)>& body)>
      run;
};

inline void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name << " of " << backend.size;
}

/// Every backend of this build and machine, several sizes each.
std::vector<Backend> backends();

}  // namespace reknit::test
