// A model out of a checkpoint's folder, as a Hugging Face folder; no rank is started.
#pragma once

#include "reknit/base/atomic_file.h"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

namespace reknit {

struct RunExport {
  std::string checkpoint;  ///< a checkpoint's folder, or a run's: its newest whole one
  std::string out;
  /// One that the checkpoint holds, or NAME_ema for the moving average of NAME. Empty: the
  /// actor, or the only one.
  std::string model;
  std::optional<at::ScalarType> dtype;  ///< none: the run's
  IfPresent if_present = IfPresent::kRefuse;
};

struct RunExported {
  std::string checkpoint;  ///< the folder that was read
  std::string model;
  at::ScalarType dtype;
  int64_t step;
  int64_t tensors;
  int64_t elements;
};

/// Reads the masters (frozen parameters: the weights) of whatever placement and rank count, one
/// parameter in memory at a time, and rounds them to `dtype`. Checks all sums first. Throws
/// InputError if there is no whole checkpoint, or it cannot be exported; UsageError for a model
/// that it does not hold and an `out` that cannot be made or lies over the checkpoint;
/// WriteError.
RunExported export_run(const RunExport& request);

}  // namespace reknit
