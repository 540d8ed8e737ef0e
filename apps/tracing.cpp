#include "apps/tracing.h"

#include "reknit/base/atomic_file.h"
#include "reknit/base/log.h"

#include <filesystem>

namespace reknit {
namespace {

std::string path_of(const RunOptions& options) {
  if (options.trace_file.empty() || !options.place.launched) {
    return options.trace_file;
  }
  const int rank = options.place.launched->rendezvous.rank;
  if (rank == 0) {
    return options.trace_file;
  }
  const std::filesystem::path path = options.trace_file;
  return (path.parent_path() / str(path.stem().string(), ".", rank, path.extension().string()))
      .string();
}

}  // namespace

TraceFile::TraceFile(const RunOptions& options) : path_(path_of(options)) {}

TraceFile::~TraceFile() {
  try {
    write();
  } catch (const std::exception& error) {
    log_warning("the trace is lost: ", error.what());
  }
}

std::unique_ptr<Recorder> TraceFile::record() {
  if (path_.empty()) {
    return nullptr;
  }
  std::lock_guard lock(mutex_);
  return std::make_unique<Recorder>(&ranks_.emplace_back(this_rank().rank));
}

void TraceFile::write() {
  if (path_.empty()) {
    return;
  }
  std::vector<const Trace*> ranks;
  for (const Trace& rank : ranks_) {
    ranks.push_back(&rank);
  }
  const std::string path = std::exchange(path_, "");
  write_file(path, trace_json(ranks));
  log_info("trace in ", path);
}

}  // namespace reknit
