// The lines of a text file that may be gzip.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace reknit {

/// Reads one file from its beginning to its end; a byte-order mark is stepped over. Throws
/// InputError that names the file: missing, a folder, damaged, or a data set of another
/// format, then with the command that converts it. One thread at a time.
class Lines {
 public:
  explicit Lines(const std::filesystem::path& path);
  ~Lines();
  Lines(Lines&&) noexcept;
  Lines& operator=(Lines&&) noexcept;

  /// The next line without its end; false at the end.
  bool next(std::string& line);

  /// Of the last line, from 1.
  int64_t number() const { return number_; }
  const std::string& name() const { return name_; }
  /// Bytes of the file, as it lies on the disk, that are read so far.
  int64_t bytes_read() const;

 private:
  struct File;

  bool fill();

  std::string name_;
  std::unique_ptr<File> file_;
  std::string buffer_;
  size_t position_ = 0;
  int64_t number_ = 0;
};

}  // namespace reknit
