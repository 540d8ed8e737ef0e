#include "apps/monitor.h"

#include "reknit/base/write_error.h"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>

namespace reknit {
namespace {

namespace fs = std::filesystem;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw UsageError(str("cannot create the folder ", folder, ": ", error.message()),
                     "name a folder that can be written");
  }
}

File append_to(const std::string& path) {
  File file(std::fopen(path.c_str(), "ab"));
  if (file == nullptr) {
    throw UsageError(str("cannot write ", path, ": ", std::strerror(errno)),
                     "name a folder that can be written");
  }
  return file;
}

void put(std::FILE* file, const std::string& path, const std::string& bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() || std::fflush(file) != 0) {
    throw WriteError(str("cannot write ", path, ": ", std::strerror(errno)),
                     "make room on its disk");
  }
}

/// CRC-32C (Castagnoli), bit by bit: records are a few hundred bytes.
uint32_t crc32c(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    }
  }
  return ~crc;
}

template <class Number>
std::string little_endian(Number number) {
  std::string bytes(sizeof(Number), '\0');
  for (size_t i = 0; i < sizeof(Number); ++i) {
    bytes[i] = static_cast<char>(number >> (8 * i));
  }
  return bytes;
}

std::string masked_crc(const std::string& bytes) {
  return little_endian<uint32_t>(std::rotr(crc32c(bytes), 15) + 0xA282EAD8u);
}

// Protocol buffers' wire format: a key of field and type, then the value.
std::string varint(uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) {
    bytes += static_cast<char>(number | 0x80);
  }
  return bytes + static_cast<char>(number);
}

std::string integer_field(uint64_t field, int64_t value) {
  return varint(field << 3) + varint(static_cast<uint64_t>(value));
}

std::string double_field(uint64_t field, double value) {
  return varint(field << 3 | 1) + little_endian(std::bit_cast<uint64_t>(value));
}

std::string bytes_field(uint64_t field, const std::string& value) {
  return varint(field << 3 | 2) + varint(value.size()) + value;
}

std::string float_field(uint64_t field, float value) {
  return varint(field << 3 | 5) + little_endian(std::bit_cast<uint32_t>(value));
}

class TensorBoard : public Monitor {
 public:
  explicit TensorBoard(const std::string& folder) {
    make_folder(folder);
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    path_ = str(folder, "/events.out.tfevents.", static_cast<int64_t>(seconds()), ".", host.data(),
                ".", getpid(), ".0");
    file_ = append_to(path_);
    record(bytes_field(3, "brain.Event:2"));
  }

  void write(int64_t step, const Scalars& scalars) override {
    std::string summary;
    for (const auto& [tag, value] : scalars) {
      summary += bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value)));
    }
    record(integer_field(2, step) + bytes_field(5, summary));
  }

 private:
  static double seconds() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  void record(const std::string& fields) {
    const std::string event = double_field(1, seconds()) + fields;
    const std::string length = little_endian<uint64_t>(event.size());
    put(file_.get(), path_, length + masked_crc(length) + event + masked_crc(event));
  }

  std::string path_;
  File file_;
};

class CsvMonitor : public Monitor {
 public:
  explicit CsvMonitor(std::string folder) : folder_(std::move(folder)) { make_folder(folder_); }

  void write(int64_t step, const Scalars& scalars) override {
    for (const auto& [tag, value] : scalars) {
      std::string name = tag;
      std::replace(name.begin(), name.end(), '/', '_');
      const std::string path = str(folder_, "/", name, ".csv");
      File& file = files_[path];
      if (file == nullptr) {
        const bool fresh = !fs::exists(path);
        file = append_to(path);
        put(file.get(), path, fresh ? str("step,", tag, "\n") : "");
      }
      put(file.get(), path, str(step, ",", value, "\n"));
    }
  }

 private:
  std::string folder_;
  std::map<std::string, File> files_;
};

}  // namespace

std::unique_ptr<Monitor> make_tensorboard(const std::string& folder) {
  return std::make_unique<TensorBoard>(folder);
}

std::unique_ptr<Monitor> make_csv_monitor(const std::string& folder) {
  return std::make_unique<CsvMonitor>(folder);
}

std::vector<std::unique_ptr<Monitor>> configured_monitors(const DeepSpeedConfig& config) {
  const auto folder_of = [](const MonitorConfig& monitor) {
    return (monitor.output_path.empty() ? "." : monitor.output_path) + "/" + monitor.job_name;
  };
  std::vector<std::unique_ptr<Monitor>> monitors;
  if (config.tensorboard.enabled) {
    monitors.push_back(make_tensorboard(folder_of(config.tensorboard)));
  }
  if (config.csv_monitor.enabled) {
    monitors.push_back(make_csv_monitor(folder_of(config.csv_monitor)));
  }
  return monitors;
}

}  // namespace reknit
