// What a build without CUDA says when NCCL is asked for.
#include "reknit/comm/nccl.h"

#include "reknit/base/error.h"

namespace reknit {
namespace {

[[noreturn]] void refuse() {
  throw UsageError("this build of reknit has no NCCL", "build it with -DREKNIT_CUDA=ON");
}

}  // namespace

bool nccl_available() {
  return false;
}

std::unique_ptr<Communicator> make_nccl(const Rendezvous&, CommOptions) {
  refuse();
}

std::vector<std::unique_ptr<Communicator>> make_nccl_thread_group(const std::vector<c10::Device>&,
                                                                  CommOptions) {
  refuse();
}

at::Tensor nccl_buffer(int64_t, c10::Device) {
  refuse();
}

}  // namespace reknit
