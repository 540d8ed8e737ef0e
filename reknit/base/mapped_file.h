// A file's bytes in memory, mapped and not read until they are touched.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace reknit {

/// The bytes of one file. Whoever holds views of them holds the shared pointer
/// too; the mapping goes with the last holder. Immutable and safe to share
/// between threads. The mapping is private: a write through a view changes this
/// process' copy only, never the file.
class MappedFile {
 public:
  /// Maps `path`. Throws InputError if it is missing, unreadable or no file.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  /// The same object over bytes that are in memory already; `name` stands for
  /// the path in messages.
  static std::shared_ptr<const MappedFile> of_bytes(std::string name, std::string bytes);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::string_view bytes() const noexcept { return bytes_; }

 private:
  explicit MappedFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::string owned_;        // of_bytes only
  void* mapping_ = nullptr;  // open only
  std::string_view bytes_;
};

/// Throws InputError if the bytes are the text stub that git leaves where a
/// large file has not been downloaded.
void refuse_lfs_stub(const MappedFile& file);

}  // namespace reknit
