#include "reknit/comm/nccl_buffer.h"

#include "reknit/base/error.h"
#include "reknit/comm/nccl.h"

#include <c10/core/DeviceGuard.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <mutex>

namespace reknit {
namespace {

/// The live ranges by base, and who wants to hear of their end.
struct Registry {
  std::recursive_mutex mutex;
  std::map<const char*, int64_t> ranges;
  std::map<const NcclRangeListener*, std::function<void(void*)>> listeners;

  static Registry& get() {
    static auto* registry = new Registry;  // outlives every tensor
    return *registry;
  }
};

void free_range(void* base, c10::Device device) {
  const c10::DeviceGuard guard(device);
  // As cudaFree does: queued work may still use the range. A device that has failed is
  // reported elsewhere.
  static_cast<void>(cudaDeviceSynchronize());
  Registry& registry = Registry::get();
  {
    std::lock_guard lock(registry.mutex);
    for (const auto& [listener, forget] : registry.listeners) {
      forget(base);
    }
    registry.ranges.erase(static_cast<const char*>(base));
  }
  ncclMemFree(base);
}

}  // namespace

std::optional<NcclRange> nccl_range_of(const void* address) {
  Registry& registry = Registry::get();
  std::lock_guard lock(registry.mutex);
  const char* at = static_cast<const char*>(address);
  auto next = registry.ranges.upper_bound(at);
  if (next == registry.ranges.begin()) {
    return std::nullopt;
  }
  const auto& [base, bytes] = *std::prev(next);
  if (at >= base + bytes) {
    return std::nullopt;
  }
  return NcclRange{const_cast<char*>(base), bytes};
}

NcclRangeListener::NcclRangeListener(std::function<void(void*)> forget) {
  Registry& registry = Registry::get();
  std::lock_guard lock(registry.mutex);
  registry.listeners[this] = std::move(forget);
}

NcclRangeListener::~NcclRangeListener() {
  Registry& registry = Registry::get();
  std::lock_guard lock(registry.mutex);
  registry.listeners.erase(this);
}

at::Tensor nccl_buffer(int64_t bytes, c10::Device device) {
  const c10::DeviceGuard guard(device);
  void* base = nullptr;
  const ncclResult_t result = ncclMemAlloc(&base, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  require<CommError>(result == ncclSuccess, "NCCL cannot allocate ", bytes, " bytes on ",
                     device.str(), ": ", ncclGetErrorString(result));
  Registry& registry = Registry::get();
  {
    std::lock_guard lock(registry.mutex);
    registry.ranges[static_cast<const char*>(base)] = bytes;
  }
  return at::from_blob(
      base, {bytes}, [device](void* memory) { free_range(memory, device); },
      at::TensorOptions(at::kByte).device(device), device);
}

}  // namespace reknit
