// Kernels recorded once and queued again as a whole.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace reknit {

/// A CUDA graph of what one thread queued on the stream that recording makes current. It keeps the
/// memory of results made while recording; every other address that the kernels use must stay what
/// it was for as long as the graph is replayed.
class CudaGraph {
 public:
  /// True where this build and `device` can record.
  static bool available(c10::Device device);

  /// Runs `body` once without executing what it queues. It must not wait for the device, and
  /// must have run before (libraries set themselves up on first use). Weights and old keys
  /// must be at rest in it (kernels/overlap.h). Other threads may use the device meanwhile.
  /// What `body` throws is rethrown, and nothing stays recorded; CommError where CUDA refuses.
  explicit CudaGraph(const std::function<void()>& body);
  /// Blocks the host until replays have ended.
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;

  /// Queues it all on the compute stream; the host does not wait.
  void replay() const;

 private:
  struct Recorded;
  std::unique_ptr<Recorded> recorded_;
};

}  // namespace reknit
