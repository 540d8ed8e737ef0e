#include "tests/support/golden.h"

#include "reknit/base/error.h"
#include "reknit/checkpoint/safetensors.h"

#include <ATen/Context.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace reknit {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    throw std::runtime_error(file.string() + " cannot be read");
  }
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

/// One process at a time, until the end of the scope.
class FileLock {
 public:
  explicit FileLock(const fs::path& file) : fd_(::open(file.c_str(), O_CREAT | O_RDWR, 0600)) {
    if (fd_ < 0 || ::flock(fd_, LOCK_EX) != 0) {
      throw std::runtime_error(file.string() + " cannot be locked");
    }
  }
  ~FileLock() { ::close(fd_); }
  FileLock(const FileLock&) = delete;

 private:
  int fd_;
};

}  // namespace

fs::path source_root() {
  return REKNIT_SOURCE_ROOT;
}

void run_golden_script(const std::string& script, const std::vector<std::string>& arguments,
                       const fs::path& log) {
  std::string command =
      str("'", REKNIT_TEST_PYTHON, "' '", (source_root() / "tests" / "golden" / script).string());
  for (const std::string& argument : arguments) {
    command += "' '" + argument;
  }
  command += "' >'" + log.string() + "' 2>&1";
  if (std::system(command.c_str()) != 0) {
    throw std::runtime_error(command + " failed:\n" + read_text(log));
  }
}

fs::path golden_folder(const std::string& name) {
  if (const char* given = std::getenv("REKNIT_GOLDEN_DIR")) {
    return fs::path(given) / name;
  }
  const fs::path script = source_root() / "tests" / "golden" / (name + ".py");
  const size_t key = std::hash<std::string>()(read_text(script));
  const fs::path folder = fs::temp_directory_path() / ("reknit-golden-" + std::to_string(getuid()) +
                                                       "-" + name + "-" + std::to_string(key));
  const FileLock lock(folder.string() + ".lock");
  if (!fs::exists(folder / "complete")) {
    fs::create_directories(folder);
    run_golden_script(name + ".py", {folder.string()}, folder / "log.txt");
    std::ofstream(folder / "complete").put('\n');
  }
  return folder;
}

std::map<std::string, at::Tensor> read_tensors(const fs::path& path) {
  const SafetensorsFile file(path.string());
  std::map<std::string, at::Tensor> tensors;
  for (const TensorInfo& info : file.tensors()) {
    tensors.emplace(info.name, file.read(info.name));
  }
  return tensors;
}

}  // namespace reknit
