// The error of what could not be written.
#pragma once

#include "reknit/base/error.h"

namespace reknit {

/// A disk, a pipe or a file system did not take what a run writes: a device has failed
/// (exit 4), however far the run has come.
struct WriteError : Error {
  explicit WriteError(const std::string& sentence, std::string help = "")
      : Error(ExitCode::kRank, sentence, std::move(help)) {}
};

}  // namespace reknit
