// CUDA graphs through the runtime, their memory from a private pool of the allocator.
#include "reknit/engine/cuda_graph.h"

#include "reknit/base/error.h"
#include "reknit/base/rank.h"
#include "reknit/kernels/overlap.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

namespace reknit {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // or the next launch would report it
    throw CommError(str(what, " failed: ", cudaGetErrorString(code)));
  }
}

cudaStream_t compute_stream() {
  return c10::cuda::CUDAStream(*this_rank().compute.native()).stream();
}

/// The stream that this thread records on. Not the compute stream, which may be the device's
/// default one, nor one of the allocator's streams, which others may be given as well: what
/// anyone queues on it while it records would be recorded.
cudaStream_t recording_stream() {
  struct Own {
    cudaStream_t stream = nullptr;
    Own() {
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream to record on");
    }
    ~Own() { static_cast<void>(cudaStreamDestroy(stream)); }
  };
  thread_local const Own own;
  return own.stream;
}

/// A pool of its own for what is allocated on `stream` while it lives.
class PoolScope {
 public:
  PoolScope(c10::DeviceIndex device, at::MempoolId_t pool, cudaStream_t stream)
      : device_(device), pool_(pool) {
    allocator::beginAllocateToPool(device, pool, [stream](cudaStream_t s) { return s == stream; });
  }
  ~PoolScope() { allocator::endAllocateToPool(device_, pool_); }
  PoolScope(const PoolScope&) = delete;

 private:
  c10::DeviceIndex device_;
  at::MempoolId_t pool_;
};

int compute_capability(c10::Device device) {
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()),
        "asking for the compute capability");
  return major;
}

/// What `body` queues on `stream`.
cudaGraph_t record(cudaStream_t stream, const std::function<void()>& body) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "starting to record");
  cudaGraph_t graph = nullptr;
  try {
    const kernels::OverlapScope overlap(compute_capability(this_rank().device) >= 9);
    body();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream, &graph));
    static_cast<void>(cudaGetLastError());
    if (graph != nullptr) {
      static_cast<void>(cudaGraphDestroy(graph));
    }
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "recording a CUDA graph");
  return graph;
}

}  // namespace

struct CudaGraph::Recorded {
  c10::DeviceIndex device;
  at::MempoolId_t pool;
  cudaStream_t stream;
  cudaGraphExec_t exec = nullptr;

  ~Recorded() {
    if (exec != nullptr) {
      static_cast<void>(cudaStreamSynchronize(stream));  // a replay uses the pool's memory
      static_cast<void>(cudaGraphExecDestroy(exec));
      allocator::releasePool(device, pool);
    }
  }
};

bool CudaGraph::available(c10::Device device) {
  return device.is_cuda();
}

CudaGraph::CudaGraph(const std::function<void()>& body) : recorded_(std::make_unique<Recorded>()) {
  const cudaStream_t stream = recording_stream();
  const c10::cuda::CUDAStreamGuard on_stream(
      c10::cuda::getStreamFromExternal(stream, this_rank().device.index()));
  recorded_->stream = compute_stream();
  recorded_->device = this_rank().device.index();
  recorded_->pool = at::cuda::graph_pool_handle();
  cudaGraph_t graph = nullptr;
  try {
    const PoolScope pool(recorded_->device, recorded_->pool, stream);
    graph = record(stream, body);
  } catch (...) {
    allocator::releasePool(recorded_->device, recorded_->pool);
    throw;
  }
  const cudaError_t code = cudaGraphInstantiate(&recorded_->exec, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  if (code != cudaSuccess) {
    recorded_->exec = nullptr;
    allocator::releasePool(recorded_->device, recorded_->pool);
  }
  check(code, "building a CUDA graph");
}

CudaGraph::~CudaGraph() = default;

void CudaGraph::replay() const {
  check(cudaGraphLaunch(recorded_->exec, compute_stream()), "replaying a CUDA graph");
}

}  // namespace reknit
