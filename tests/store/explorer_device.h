// A device that computes nothing: torch's PrivateUse1 type, whose streams, events and
// operators record what they were asked into a Recorder. reknit/base/stream.cpp and the
// store run on it unchanged.
#pragma once

#include "tests/store/explorer_trace.h"

#include "reknit/base/stream.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace reknit::explorer {

/// While one lives, the device of type PrivateUse1 records into `recorder` as `rank`.
class DeviceScope {
 public:
  DeviceScope(Recorder& recorder, int rank);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
};

c10::Device device_of(int rank);
/// The memory of a contiguous simulated tensor, in whole cells.
Cells cells_of(const at::Tensor& tensor);
/// Queues an operation of the test on `stream`.
void launch(const Stream& stream, Node node);

/// One rank's side of a world of `size` ranks, never blocking; so are the groups split off.
std::unique_ptr<Communicator> make_world(CommOptions options, int size, int rank);

}  // namespace reknit::explorer
