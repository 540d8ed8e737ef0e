#include "apps/run_folder.h"

#include "reknit/base/atomic_file.h"
#include "reknit/base/log.h"
#include "reknit/base/write_error.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace reknit {
namespace {

namespace fs = std::filesystem;

// Every run begins by writing these two.
void require_run_folder(const std::string& path) {
  const bool empty = !fs::exists(path) || (fs::is_directory(path) && fs::is_empty(path));
  const bool run =
      fs::is_regular_file(path + "/log.txt") && fs::is_regular_file(path + "/config.json");
  if (!empty && !run) {
    throw UsageError(str("--overwrite would empty --out ", path,
                         ", which is no run's folder: log.txt or config.json is not in it"),
                     "pass another --out, or empty it yourself");
  }
}

// All but log.txt, which carries the lock.
void empty_run_folder(const std::string& path) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().filename() == "log.txt") {
      fs::resize_file(entry.path(), 0, error);
    } else {
      fs::remove_all(entry.path(), error);
    }
    if (error) {
      throw UsageError(str("cannot empty the run folder ", path, ": ", error.message()),
                       "name a folder whose content can be removed");
    }
  }
}

}  // namespace

RunFolder::RunFolder(std::string path, bool overwrite) : path_(std::move(path)) {
  if (!exists()) {
    return;
  }
  if (overwrite) {
    require_run_folder(path_);
  }
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) {
    throw UsageError(str("cannot create the run folder ", path_, ": ", error.message()),
                     "name a folder that can be written");
  }
  lock();
  if (overwrite) {
    empty_run_folder(path_);
  }
  set_log_file(file("log.txt"));
}

void RunFolder::lock() {
  const std::string log = file("log.txt");
  lock_ = ::open(log.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) {
    throw UsageError(str("cannot create ", log, ": ", std::strerror(errno)),
                     "name a folder that can be written");
  }
  if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) {
    return;
  }
  const int reason = errno;
  if (reason == EWOULDBLOCK) {
    ::close(lock_);
    throw UsageError(str("another run writes into --out ", path_, " at this moment"),
                     "wait for its end, or pass another --out");
  }
  log_info("--out ", path_, " cannot be locked (", std::strerror(reason),
           "): make sure that no other run writes into it");
}

RunFolder::~RunFolder() {
  for (std::FILE* open : {metrics_, samples_}) {
    if (open != nullptr) {
      std::fclose(open);
    }
  }
  if (exists()) {
    set_log_file("");
  }
  if (lock_ >= 0) {
    ::close(lock_);
  }
}

void RunFolder::resume_after(int64_t step) {
  for (const char* name : {"metrics.jsonl", "samples.jsonl"}) {
    if (!exists() || !fs::is_regular_file(file(name))) {
      continue;
    }
    std::ifstream in(file(name));
    std::string kept;
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      // A line that a crash cut short belongs to a step that is repeated.
      if (!json.is_discarded() && json.value("step", int64_t{0}) <= step) {
        kept += line + "\n";
      }
    }
    write_file(file(name), kept);
  }
}

void RunFolder::append(std::FILE*& open, const std::string& name, const std::string& lines) {
  if (!exists() || lines.empty()) {
    return;
  }
  if (open == nullptr) {
    open = std::fopen(file(name).c_str(), "a");
  }
  const bool written = open != nullptr &&
                       std::fwrite(lines.data(), 1, lines.size(), open) == lines.size() &&
                       std::fflush(open) == 0;
  if (!written) {
    throw WriteError(str("cannot write ", file(name), ": ", std::strerror(errno)),
                     "make room on its disk, then go on from the last checkpoint with --resume "
                     "auto");
  }
}

void RunFolder::metrics(const nlohmann::ordered_json& line) {
  append(metrics_, "metrics.jsonl", line.dump() + "\n");
}

void RunFolder::samples(const std::string& lines) {
  append(samples_, "samples.jsonl", lines);
}

void RunFolder::write(const std::string& name, const std::string& text) const {
  if (exists()) {
    write_file(file(name), text);
  }
}

}  // namespace reknit
