// Files and folders that appear under their name whole or not at all.
#include "reknit/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"
#include "reknit/base/write_error.h"

namespace reknit {
namespace {

namespace fs = std::filesystem;

std::string aside_name(const std::string& path) {
  static std::atomic<uint64_t> counter{0};
  return str(path, ".partial-", ::getpid(), "-", counter++);
}

[[noreturn]] void throw_write_error(const std::string& path, int error) {
  throw WriteError(str("cannot write ", path, ": ", std::strerror(error)),
                   error == ENOSPC || error == EDQUOT
                       ? "free some space, or write to another disk; nothing was left behind"
                       : "look at the disk or the connection to it; nothing was left behind");
}

[[noreturn]] void throw_create_error(const std::string& path, int error) {
  throw UsageError(str("cannot create ", path, ": ", std::strerror(error)),
                   "name a folder that exists and can be written");
}

void sync_path(const std::string& path, int extra_flags = 0) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | extra_flags);
  if (fd < 0) {
    throw_write_error(path, errno);
  }
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  // Some network file systems cannot sync a folder and say EINVAL.
  if (result != 0 && !(error == EINVAL && extra_flags == O_DIRECTORY)) {
    throw_write_error(path, error);
  }
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path;
}

// Exchanges the two in one step if the file system can, else in two.
void replace_folder(const std::string& aside, const std::string& path) {
  if (::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0) {
    const std::string old = aside_name(path);
    if (::rename(path.c_str(), old.c_str()) != 0) {
      throw_write_error(path, errno);
    }
    if (::rename(aside.c_str(), path.c_str()) != 0) {
      const int error = errno;
      ::rename(old.c_str(), path.c_str());
      throw_write_error(path, error);
    }
    ::rename(old.c_str(), aside.c_str());
  }
  std::error_code ignored;  // The new folder stands; the old one is only litter now.
  fs::remove_all(aside, ignored);
}

}  // namespace

void make_parents(const std::string& path) {
  std::error_code error;
  fs::create_directories(parent_of(path), error);
  if (error) {
    throw_create_error(path, error.value());
  }
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  do {
    aside_ = aside_name(path_);
    fd_ = ::open(aside_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) {
    throw_create_error(path_, errno);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  if (!aside_.empty()) {
    ::unlink(aside_.c_str());
  }
}

void AtomicFile::write(std::string_view bytes) {
  write_at(end_, bytes);
  end_ += static_cast<int64_t>(bytes.size());
}

void AtomicFile::write_at(int64_t offset, std::string_view bytes) {
  REKNIT_INVARIANT(fd_ >= 0, path_, " is written to after its commit");
  constexpr size_t kMaxCall = size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), std::min(bytes.size(), kMaxCall), offset);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      throw_write_error(path_, written < 0 ? errno : ENOSPC);
    }
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += written;
  }
}

void AtomicFile::commit() {
  REKNIT_INVARIANT(fd_ >= 0, path_, " is committed twice");
  if (::fsync(fd_) != 0) {
    throw_write_error(path_, errno);
  }
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0 || ::rename(aside_.c_str(), path_.c_str()) != 0) {
    throw_write_error(path_, errno);
  }
  aside_.clear();
  sync_path(parent_of(path_), O_DIRECTORY);
}

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void copy_file(const std::string& from, const std::string& to) {
  write_file(to, MappedFile::open(from)->bytes());
}

AtomicFolder::AtomicFolder(std::string path, IfPresent if_present)
    : path_(without_trailing_slash(std::move(path))), if_present_(if_present) {
  require<UsageError>(!path_.empty(), "the name of the folder to write is empty");
  make_parents(path_);
  std::error_code error;
  const auto status = fs::status(path_, error);
  if (fs::exists(status)) {
    require<UsageError>(fs::is_directory(status), "cannot write the folder ", path_,
                        ": a file has that name");
    if (if_present_ == IfPresent::kRefuse) {
      if (!fs::is_empty(path_, error)) {
        throw UsageError(str("the folder ", path_, " is not empty"),
                         "name another folder, or pass --overwrite");
      }
    }
  }
  int made = -1;
  do {
    aside_ = aside_name(path_);
    made = ::mkdir(aside_.c_str(), 0777);
  } while (made != 0 && errno == EEXIST);
  if (made != 0) {
    throw_create_error(path_, errno);
  }
}

AtomicFolder::~AtomicFolder() {
  if (!committed_) {
    std::error_code ignored;
    fs::remove_all(aside_, ignored);
  }
}

void AtomicFolder::commit() {
  REKNIT_INVARIANT(!committed_, path_, " is committed twice");
  std::error_code error;
  for (fs::recursive_directory_iterator entry(aside_, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->is_directory(error)) {
      sync_path(entry->path().string(), O_DIRECTORY);
    } else if (entry->is_regular_file(error)) {
      sync_path(entry->path().string());
    }
  }
  if (error) {
    throw_write_error(path_, error.value());
  }
  sync_path(aside_, O_DIRECTORY);
  if (::rename(aside_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    const bool taken = reason == ENOTEMPTY || reason == EEXIST;
    if (!taken || if_present_ == IfPresent::kRefuse) {
      throw_write_error(path_, reason);
    }
    replace_folder(aside_, path_);
  }
  committed_ = true;
  sync_path(parent_of(path_), O_DIRECTORY);
}

}  // namespace reknit
