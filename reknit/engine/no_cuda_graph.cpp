// Stands in for CUDA graphs in a build without CUDA.
#include "reknit/base/error.h"
#include "reknit/engine/cuda_graph.h"

namespace reknit {

struct CudaGraph::Recorded {};

bool CudaGraph::available(c10::Device) {
  return false;
}

CudaGraph::CudaGraph(const std::function<void()>&) {
  throw UsageError("this build of reknit has no CUDA graphs",
                   "configure with -DREKNIT_CUDA=ON, or run on CPU");
}

CudaGraph::~CudaGraph() = default;

void CudaGraph::replay() const {}

}  // namespace reknit
