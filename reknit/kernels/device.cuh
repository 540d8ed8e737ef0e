// What the CUDA families share: element conversion, packs, reductions, launching.
#pragma once

#include "reknit/base/error.h"
#include "reknit/kernels/element.h"
#include "reknit/kernels/overlap.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace reknit::kernels {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Device helpers.

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__half x) {
  return __half2float(x);
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// `kSize` elements that are loaded and stored at once; an address of a pack is a
/// multiple of its size.
template <class T, int kSize>
struct alignas(sizeof(T) * kSize) Pack {
  T at[kSize];
};

/// Elements of a 16-byte pack.
template <class T>
constexpr int kPackSize = 16 / static_cast<int>(sizeof(T));

template <class T, int kSize>
__device__ Pack<T, kSize> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kSize>*>(from);
}
template <class T, int kSize>
__device__ void store_pack(T* to, const Pack<T, kSize>& pack) {
  *reinterpret_cast<Pack<T, kSize>*>(to) = pack;
}

struct Sum {
  template <class V>
  __device__ V operator()(V a, V b) const {
    return a + b;
  }
};
struct Max {
  template <class V>
  __device__ V operator()(V a, V b) const {
    return a > b ? a : b;
  }
};

/// The reduction over a warp, in a fixed order; every lane gets it.
template <class V, class Op>
__device__ V warp_reduce(V value, Op op) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

/// The reduction over a block of whole warps, in a fixed order; every thread gets it.
/// `scratch` is shared memory for 32 values; it may be reused after the call.
template <class V, class Op>
__device__ V block_reduce(V value, V neutral, V* scratch, Op op) {
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  value = warp_reduce(value, op);
  if (lane == 0) {
    scratch[warp] = value;
  }
  __syncthreads();
  value = lane < static_cast<int>(blockDim.x) / kWarp ? scratch[lane] : neutral;
  value = warp_reduce(value, op);
  __syncthreads();
  return value;
}

/// What an overlapping kernel (launch_overlapping) calls first: the next one may start.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// What it calls before it reads or writes anything that kernels ahead of it touch.
__device__ inline void wait_for_kernels_ahead() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Host helpers.

/// Throws CommError naming `what` unless `code` is success.
inline void check_cuda(cudaError_t code, const char* what) {
  require<CommError>(code == cudaSuccess, what, " failed: ", cudaGetErrorString(code));
}

/// Calls f(T{}) with the device type of `element`.
template <class F>
void with_element(Element element, F&& f) {
  switch (element) {
    case Element::kFp32:
      return f(float{});
    case Element::kFp16:
      return f(__half{});
    case Element::kBf16:
      return f(__nv_bfloat16{});
  }
}

inline bool aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// How a kernel is queued, beside its sizes.
struct LaunchMode {
  bool overlaps = false;  ///< calls wait_for_kernels_ahead(): may start early in an OverlapScope
  unsigned cluster = 1;   ///< blocks along x that share their memory
};

/// Queues `kernel` on `stream`; throws CommError naming `what` where it is refused. An
/// empty grid is nothing to do.
template <class... Params, class... Args>
void launch_as(LaunchMode mode, const char* what, void (*kernel)(Params...), dim3 grid, dim3 block,
               int64_t shared, cudaStream_t stream, Args... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) {
    return;
  }
  if (shared > 48 * 1024) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared)),
               what);
  }
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  config.attrs = attributes;
  if (mode.overlaps && OverlapScope::active()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (mode.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = mode.cluster;
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), what);
}

template <class... Params, class... Args>
void launch(const char* what, void (*kernel)(Params...), dim3 grid, dim3 block, int64_t shared,
            cudaStream_t stream, Args... args) {
  launch_as({}, what, kernel, grid, block, shared, stream, args...);
}

/// For a kernel that calls wait_for_kernels_ahead() in every thread.
template <class... Params, class... Args>
void launch_overlapping(const char* what, void (*kernel)(Params...), dim3 grid, dim3 block,
                        int64_t shared, cudaStream_t stream, Args... args) {
  launch_as({.overlaps = true}, what, kernel, grid, block, shared, stream, args...);
}

}  // namespace reknit::kernels
