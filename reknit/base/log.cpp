#include "reknit/base/log.h"

#include <atomic>
#include <cstdio>
#include <mutex>

namespace reknit {
namespace {

std::atomic<LogLevel> min_level{LogLevel::kInfo};
std::mutex mutex;
std::FILE* file = nullptr;

const char* tag(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug: ";
    case LogLevel::kInfo:
      return "";
    case LogLevel::kWarning:
      return "warning: ";
  }
  return "";
}

}  // namespace

void set_log_level(LogLevel level) {
  min_level = level;
}

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
  if (level < min_level) {
    return;
  }
  const RankContext& rank = this_rank();
  std::string line = tag(level);
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
