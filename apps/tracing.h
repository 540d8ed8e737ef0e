// What the ranks of this process record for --trace, and the file that it ends in.
#pragma once

#include "apps/options.h"
#include "reknit/comm/recorder.h"

#include <deque>
#include <memory>
#include <mutex>
#include <string>

namespace reknit {

/// Made before the ranks start; outlives them. Without --trace every call is a no-op. If
/// write() is not reached, because the run has failed, the end of this writes the file.
class TraceFile {
 public:
  explicit TraceFile(const RunOptions& options);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;

  /// Records what the calling rank's thread does for as long as it lives. Null without --trace.
  std::unique_ptr<Recorder> record();

  /// After the ranks have ended. Throws WriteError.
  void write();

  /// Where this process writes: FILE; of a launched process but the first FILE with its rank
  /// before the ending, "trace.3.json".
  const std::string& path() const { return path_; }

 private:
  std::string path_;  ///< empty: no trace, or written
  std::mutex mutex_;
  std::deque<Trace> ranks_;
};

}  // namespace reknit
