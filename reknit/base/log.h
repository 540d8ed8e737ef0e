// Rank-tagged log lines on standard error.
#pragma once

#include "reknit/base/error.h"

#include <string>

namespace reknit {

enum class LogLevel { kInfo, kWarning };

/// Also appends every line to `path` (the run folder's log.txt); empty stops it.
void set_log_file(const std::string& path);

/// Writes one line, whole, tagged with the rank where there are several.
void log_line(LogLevel level, const std::string& text);

template <class... Parts>
void log_info(const Parts&... parts) {
  log_line(LogLevel::kInfo, str(parts...));
}
template <class... Parts>
void log_warning(const Parts&... parts) {
  log_line(LogLevel::kWarning, str(parts...));
}
/// As log_info, from rank 0 only.
template <class... Parts>
void log_once(const Parts&... parts);

}  // namespace reknit

#include "reknit/base/rank.h"

template <class... Parts>
void reknit::log_once(const Parts&... parts) {
  if (this_rank().rank == 0) {
    log_line(LogLevel::kInfo, str(parts...));
  }
}
