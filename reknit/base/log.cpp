#include "reknit/base/log.h"

#include <cstdio>
#include <mutex>

namespace reknit {
namespace {

std::mutex mutex;
std::FILE* file = nullptr;

}  // namespace

void set_log_file(const std::string& path) {
  std::lock_guard lock(mutex);
  if (file != nullptr) {
    std::fclose(file);
    file = nullptr;
  }
  if (path.empty()) {
    return;
  }
  file = std::fopen(path.c_str(), "a");
  require<UsageError>(file != nullptr, "cannot write the log file ", path);
}

void log_line(LogLevel level, const std::string& text) {
  const RankContext& rank = this_rank();
  std::string line = level == LogLevel::kWarning ? "warning: " : "";
  if (rank.world > 1 && (rank.rank != 0 || level != LogLevel::kInfo)) {
    line += str("[rank ", rank.rank, "] ");
  }
  line += text;
  line += '\n';
  std::lock_guard lock(mutex);
  std::fputs(line.c_str(), stderr);
  if (file != nullptr) {
    std::fputs(line.c_str(), file);
    std::fflush(file);
  }
}

}  // namespace reknit
