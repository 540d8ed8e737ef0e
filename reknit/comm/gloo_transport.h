// libtorch's Gloo process group, reduced to moving bytes, with a way to break it off.
#pragma once

#include "reknit/comm/job_store.h"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>

namespace reknit {

/// The connections of a group of processes on CPU. One thread at a time moves data; every
/// call blocks until its own part is done, without a deadline, and throws what libtorch
/// throws if a connection breaks. Tensors are contiguous and not empty.
class GlooTransport {
 public:
  /// Collective over the group's `size` processes, which meet under `path`.
  GlooTransport(const JobStore& job, const std::string& path, int rank, int size,
                std::chrono::milliseconds timeout);
  ~GlooTransport();

  void all_gather(const at::Tensor& full, const at::Tensor& shard);
  void all_to_all(const at::Tensor& out, const at::Tensor& in);
  void broadcast(const at::Tensor& tensor, int root);

  /// Shuts the connections down: whoever is blocked in a call, here and in the other
  /// processes, throws soon. From any thread; libtorch itself has no such way.
  void close() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace reknit
