// CUDA devices through the runtime, and the versions of what drives them.
#include "apps/devices.h"

#include "apps/device_memory.h"
#include "reknit/base/error.h"

#include <cuda_runtime.h>
#include <nccl.h>

namespace reknit {
namespace {

std::string dotted(int version) {  // 13020 is 13.2
  return str(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

bool built_with_cuda() {
  return true;
}

std::vector<GpuInfo> cuda_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    return {};
  }
  if (status != cudaSuccess) {
    throw UsageError(str("cudaGetDeviceCount: ", cudaGetErrorString(status)),
                     "check the driver with nvidia-smi, or pass --device cpu");
  }
  std::vector<GpuInfo> gpus;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
      throw UsageError(str("CUDA device ", device, " does not answer"));
    }
    gpus.push_back({properties.name, properties.major, properties.minor,
                    static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return gpus;
}

int64_t free_device_memory(int device) {
  int before = 0;
  size_t free = 0;
  size_t total = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess ||
      cudaMemGetInfo(&free, &total) != cudaSuccess || cudaSetDevice(before) != cudaSuccess) {
    throw UsageError(str("CUDA device ", device, " does not answer"));
  }
  return static_cast<int64_t>(free);
}

std::vector<std::string> cuda_versions() {
  int runtime = 0;
  int driver = 0;
  int nccl = 0;
  std::vector<std::string> out;
  if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
    out.push_back("CUDA runtime " + dotted(runtime));
  }
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) {
    out.push_back("CUDA driver " + dotted(driver));
  } else {
    out.emplace_back("CUDA driver none");
  }
  if (ncclGetVersion(&nccl) == ncclSuccess) {
    out.push_back(str("NCCL ", nccl / 10000, ".", nccl / 100 % 100, ".", nccl % 100));
  }
  return out;
}

}  // namespace reknit
