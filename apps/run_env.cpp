// reknit env: versions, devices, launcher, what is built in and what is missing.
#include "apps/commands.h"

#include <torch/headeronly/version.h>

#include <iostream>
#include <thread>

namespace reknit {
namespace {

void print_versions() {
  std::cout << "reknit " << REKNIT_VERSION << "\n"
            << "libtorch " << TORCH_VERSION << "\n"
            << "compiler " << __VERSION__ << "\n";
  for (const std::string& version : cuda_versions()) {
    std::cout << version << "\n";
  }
}

void print_devices(const std::vector<GpuInfo>& gpus, const std::vector<std::string>& unusable) {
  std::cout << "\ndevices:\n  cpu: " << std::thread::hardware_concurrency() << " threads\n";
  for (size_t i = 0; i < gpus.size(); ++i) {
    const GpuInfo& gpu = gpus[i];
    std::cout << "  cuda:" << i << ": " << gpu.name << ", compute capability " << gpu.major << "."
              << gpu.minor << ", " << (gpu.memory_bytes >> 20) << " MiB\n";
  }
  for (const std::string& sentence : unusable) {
    std::cout << "  not usable: " << sentence << "\n";
  }
}

void print_launcher() {
  std::cout << "\nlauncher: ";
  const auto process = launched_process();
  if (!process) {
    std::cout << "none (ranks are threads of one process)\n";
    return;
  }
  const Rendezvous& r = process->rendezvous;
  std::cout << process->launcher << ", rank " << r.rank << " of " << r.world << ", local rank "
            << process->local_rank << " of " << process->local_world << ", meets at " << r.host
            << ":" << r.port << "\n";
}

void print_missing(const std::vector<GpuInfo>& gpus) {
  std::vector<std::string> missing;
  if (!built_with_cuda()) {
    missing.emplace_back(
        "CUDA: build with -DREKNIT_CUDA=ON (./dev build does so where it finds a "
        "GPU and a CUDA compiler)");
  } else if (gpus.empty()) {
    missing.emplace_back("a GPU: the driver shows none; nvidia-smi should list it");
  }
  missing.emplace_back(
      "a writer for Weights & Biases: --tensorboard writes files that `wandb sync` takes");
  std::cout << "\nmissing:\n";
  for (const std::string& line : missing) {
    std::cout << "  " << line << "\n";
  }
}

}  // namespace

int run_env(const EnvOptions&) {
  std::vector<GpuInfo> gpus;
  std::string cuda_error;
  try {
    gpus = cuda_devices();
  } catch (const UsageError& error) {
    cuda_error = error.what();
  }
  std::vector<std::string> unusable = unusable_gpus(gpus);
  if (!cuda_error.empty()) {
    unusable.push_back(cuda_error);
  }
  print_versions();
  print_devices(gpus, unusable);
  print_launcher();
  std::cout << "\nbuilt in:\n"
            << "  communication: threads, gloo" << (built_with_cuda() ? ", nccl" : "") << "\n"
            << "  kernels: cpu"
            << (built_with_cuda() ? ", cuda for compute capability " REKNIT_ARCHITECTURES : "")
            << "\n";
  print_missing(gpus);
  std::cout << "\nsupported: NVIDIA GPUs of compute capability 8.0 and up, and the CPU. Not "
               "supported: V100 (7.0) and other GPUs before 8.0, AMD GPUs (ROCm).\n";
  return 0;
}

}  // namespace reknit
