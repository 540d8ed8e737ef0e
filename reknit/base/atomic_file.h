// Files and folders that appear under their name whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace reknit {

/// Makes the folders above `path` that are not there. Throws UsageError with the path.
void make_parents(const std::string& path);

/// A file that is written aside, in the folder of its final name, and takes that
/// name in commit(). Until then, and if commit() is never reached, whatever was
/// under the name stays. One owner, one thread.
class AtomicFile {
 public:
  /// Creates the file aside. Throws UsageError with the path if that is not
  /// possible (no such folder, no permission, read-only).
  explicit AtomicFile(std::string path);
  /// Without commit(): removes what was written.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::string& path() const noexcept { return path_; }

  /// Appends after the last byte that write() wrote. Throws WriteError with the
  /// path if the disk is full or fails.
  void write(std::string_view bytes);
  /// Writes at a place of its own and leaves that of write() alone; a gap that
  /// is never written reads as zeros. Errors as in write().
  void write_at(int64_t offset, std::string_view bytes);

  /// Forces the bytes to disk, then renames (replacing an older file). Throws
  /// WriteError with the path; under the name is then a whole file, the older one or,
  /// where only the folder could not be synced, the new one. Once only.
  void commit();

 private:
  std::string path_;
  std::string aside_;
  int fd_ = -1;
  int64_t end_ = 0;
};

/// Writes a whole small file through AtomicFile.
void write_file(const std::string& path, std::string_view bytes);

enum class IfPresent { kRefuse, kReplace };

/// The same contract for a folder: files go into aside(), and the folder takes
/// its name with all of them in commit().
class AtomicFolder {
 public:
  /// Makes the folder aside (and the parents of the final name). Throws
  /// UsageError with the path if that is not possible or, with kRefuse, if the
  /// name is taken by anything but an empty folder.
  explicit AtomicFolder(std::string path, IfPresent if_present = IfPresent::kRefuse);
  /// Without commit(): removes what was written.
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::string& path() const noexcept { return path_; }
  /// Where the files of the folder are written until commit().
  const std::string& aside() const noexcept { return aside_; }

  /// Forces all files to disk, then renames. An older folder is exchanged in one
  /// step where the file system can, and then removed. Throws WriteError. Once only.
  void commit();

 private:
  std::string path_;
  std::string aside_;
  IfPresent if_present_;
  bool committed_ = false;
};

/// Copies a file's bytes through AtomicFile. Throws InputError, UsageError or WriteError.
void copy_file(const std::string& from, const std::string& to);

}  // namespace reknit
