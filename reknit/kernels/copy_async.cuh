// Copies from global to shared memory that a thread starts and waits for in groups.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace reknit::kernels {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// 16 bytes.
__device__ inline void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to)),
               "l"(from)
               : "memory");
}
/// The same; zeros where `bytes` is 0 instead of 16.
__device__ inline void copy_async(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes)
               : "memory");
}
__device__ inline void end_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ void wait_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace reknit::kernels
