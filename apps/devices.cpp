#include "apps/devices.h"

#include "reknit/base/error.h"

#include <filesystem>
#include <fstream>

namespace reknit {
namespace {

namespace fs = std::filesystem;

constexpr int kOldestMajor = 8;

/// "Model:  NVIDIA H200" of the driver's own pages.
std::vector<std::string> nvidia_models() {
  std::vector<std::string> models;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    std::ifstream file(entry.path() / "information");
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("Model:")) {
        const size_t start = line.find_first_not_of(" \t", 6);
        models.push_back(start == std::string::npos ? "NVIDIA GPU" : line.substr(start));
      }
    }
  }
  if (models.empty() && fs::exists("/dev/nvidia0", ignored)) {
    models.emplace_back("NVIDIA GPU");
  }
  return models;
}

/// The names of nodes with compute units that the ROCm driver lists.
std::vector<std::string> amd_models() {
  std::vector<std::string> models;
  std::error_code ignored;
  const fs::path nodes = "/sys/class/kfd/kfd/topology/nodes";
  for (const auto& entry : fs::directory_iterator(nodes, ignored)) {
    std::ifstream properties(entry.path() / "properties");
    bool has_units = false;
    for (std::string key, value; properties >> key >> value;) {
      has_units |= key == "simd_count" && value != "0";
    }
    if (has_units) {
      std::string name;
      std::getline(std::ifstream(entry.path() / "name"), name);
      models.push_back(name.empty() ? "AMD GPU" : "AMD GPU " + name);
    }
  }
  if (models.empty() && fs::exists("/dev/kfd", ignored)) {
    models.emplace_back("AMD GPU");
  }
  return models;
}

}  // namespace

std::string too_old(const GpuInfo& gpu) {
  if (gpu.major >= kOldestMajor) {
    return "";
  }
  return str(gpu.name, " has compute capability ", gpu.major, ".", gpu.minor, "; ", kOldestMajor,
             ".0 is the oldest that is supported",
             gpu.major == 7 ? " (Volta and Turing are not)" : "");
}

std::vector<std::string> unusable_gpus(const std::vector<GpuInfo>& usable) {
  std::vector<std::string> out;
  for (const GpuInfo& gpu : usable) {
    if (const std::string why = too_old(gpu); !why.empty()) {
      out.push_back(why);
    }
  }
  if (usable.empty()) {
    for (const std::string& model : nvidia_models()) {
      out.push_back(built_with_cuda() ? str(model, " is there, but the CUDA driver shows no device")
                                      : str(model, " is there, but this build has no CUDA"));
    }
  }
  for (const std::string& model : amd_models()) {
    out.push_back(model + ": ROCm is not supported");
  }
  return out;
}

}  // namespace reknit
