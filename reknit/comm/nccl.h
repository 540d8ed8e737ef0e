// Ranks with a GPU each, threads or processes: NCCL, called directly.
#pragma once

#include "reknit/comm/gloo.h"

namespace reknit {

/// True if this build has the backend.
bool nccl_available();

// How the results of these groups are waited for: wait(stream) on a CUDA stream orders
// that stream and does not block the host; wait(Stream()) blocks the host until the
// device is done. Either throws if the group has failed by then. Operations run on the
// stream that they are given. A device that waits for a rank that never joins is freed
// by the watchdog after the timeout (counted from the start of the operation), and the
// next call or wait throws the sentence.

/// Collective. One rank per GPU: this_rank().device. Non-blocking communicator;
/// asynchronous errors and deadlines are polled by the process's watchdog, which
/// aborts the communicator. Throws CommError; UsageError if not built in.
std::unique_ptr<Communicator> make_nccl(const Rendezvous& rendezvous, CommOptions options = {});

/// The same for ranks that are threads of this process: all communicators are
/// created in one grouped call; element r is for rank r on devices[r].
std::vector<std::unique_ptr<Communicator>> make_nccl_thread_group(
    const std::vector<c10::Device>& devices, CommOptions options = {});

/// Memory that collectives read and write fastest: ncclMemAlloc, registered with
/// the communicator on first use. A uint8 tensor that frees itself.
at::Tensor nccl_buffer(int64_t bytes, c10::Device device);

}  // namespace reknit
