// Scalars over the steps of a run, for other programs: TensorBoard event files, CSV files.
#pragma once

#include "reknit/config/deepspeed.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace reknit {

/// Tag and value, in the order of writing.
using Scalars = std::vector<std::pair<std::string, double>>;

/// A place that scalars go to; written by rank 0 alone, flushed at every call.
class Monitor {
 public:
  virtual ~Monitor() = default;
  /// WriteError if the disk is full or fails.
  virtual void write(int64_t step, const Scalars& scalars) = 0;
};

/// A new event file in `folder`, which is made if absent (UsageError if that fails): records
/// of TFRecord's framing, each one Event of TensorBoard's protocol with simple values.
std::unique_ptr<Monitor> make_tensorboard(const std::string& folder);
/// A file per tag in `folder`, `/` in tags being `_`: lines of step,value that go on where an
/// earlier run ended.
std::unique_ptr<Monitor> make_csv_monitor(const std::string& folder);
/// Those that a config's sections turn on.
std::vector<std::unique_ptr<Monitor>> configured_monitors(const DeepSpeedConfig& config);

}  // namespace reknit
