#include "tests/support/golden.h"

#include <ATen/Context.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
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

at::ScalarType dtype_of(const std::string& name) {
  static const std::map<std::string, at::ScalarType> dtypes{
      {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16},
      {"I64", at::kLong},   {"I32", at::kInt},   {"U8", at::kByte},  {"BOOL", at::kBool}};
  return dtypes.at(name);
}

}  // namespace

fs::path golden_folder(const std::string& name) {
  if (const char* given = std::getenv("REKNIT_GOLDEN_DIR")) {
    return fs::path(given) / name;
  }
  const fs::path script = fs::path(REKNIT_TEST_DATA).parent_path() / "golden" / (name + ".py");
  const size_t key = std::hash<std::string>()(read_text(script));
  const fs::path folder = fs::temp_directory_path() / ("reknit-golden-" + std::to_string(getuid()) +
                                                       "-" + name + "-" + std::to_string(key));
  const FileLock lock(folder.string() + ".lock");
  if (!fs::exists(folder / "complete")) {
    fs::create_directories(folder);
    const std::string command = std::string("'") + REKNIT_TEST_PYTHON + "' '" + script.string() +
                                "' '" + folder.string() + "' >'" + (folder / "log.txt").string() +
                                "' 2>&1";
    if (std::system(command.c_str()) != 0) {
      throw std::runtime_error(command + " failed:\n" + read_text(folder / "log.txt"));
    }
    std::ofstream(folder / "complete").put('\n');
  }
  return folder;
}

std::map<std::string, at::Tensor> read_tensors(const fs::path& file) {
  const std::string bytes = read_text(file);
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const auto header = nlohmann::json::parse(bytes.substr(8, header_size));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      continue;
    }
    const auto shape = entry.at("shape").get<std::vector<int64_t>>();
    at::Tensor tensor = at::empty(shape, dtype_of(entry.at("dtype")));
    const char* begin = bytes.data() + 8 + header_size + entry.at("data_offsets")[0].get<size_t>();
    std::memcpy(tensor.data_ptr(), begin, tensor.nbytes());
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

std::vector<c10::Device> test_devices() {
  std::vector<c10::Device> devices{c10::kCPU};
  if (at::hasCUDA()) {
    devices.emplace_back(c10::kCUDA, 0);
  }
  return devices;
}

}  // namespace reknit
