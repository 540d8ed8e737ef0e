// A file's bytes in memory, mapped and not read until they are touched.
#include "reknit/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "reknit/base/error.h"

namespace reknit {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() { ::close(fd); }
};

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  require<InputError>(fd >= 0, "cannot read ", path, ": ", std::strerror(errno));
  const Descriptor closer{fd};
  struct stat info {};
  require<InputError>(::fstat(fd, &info) == 0, "cannot read ", path, ": ", std::strerror(errno));
  require<InputError>(S_ISREG(info.st_mode), "cannot read ", path, ": it is not a regular file");
  std::shared_ptr<MappedFile> file(new MappedFile(path));
  const auto size = static_cast<size_t>(info.st_size);
  if (size > 0) {
    void* mapping =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    require<InputError>(mapping != MAP_FAILED, "cannot map ", path, " (", size,
                        " bytes): ", std::strerror(errno));
    file->mapping_ = mapping;
    file->bytes_ = std::string_view(static_cast<const char*>(mapping), size);
  }
  return file;
}

std::shared_ptr<const MappedFile> MappedFile::of_bytes(std::string name, std::string bytes) {
  std::shared_ptr<MappedFile> file(new MappedFile(std::move(name)));
  file->owned_ = std::move(bytes);
  file->bytes_ = file->owned_;
  return file;
}

MappedFile::~MappedFile() {
  if (mapping_ != nullptr) {
    ::munmap(mapping_, bytes_.size());
  }
}

void refuse_lfs_stub(const MappedFile& file) {
  if (file.bytes().starts_with("version https://git-lfs.github.com/")) {
    throw InputError(str(file.path(), " is the git-lfs stub of a file that was not downloaded"),
                     "run `git lfs pull` in that folder");
  }
}

}  // namespace reknit
