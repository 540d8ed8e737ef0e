// How fast are the collectives of thread ranks with a GPU each? Checks the values, then
// prints microseconds and GB/s of all-gather and reduce-scatter in place, in bf16.
// Usage: bench_nccl_ops [number of GPUs, default 2] [plain]
#include "reknit/base/error.h"
#include "reknit/base/rank.h"
#include "reknit/comm/nccl.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <cstring>

namespace reknit {
namespace {

constexpr int kRounds = 20;

at::Tensor bf16_buffer(int64_t bytes, c10::Device device, bool plain) {
  const auto options = at::TensorOptions(at::kByte).device(device);
  return (plain ? at::empty({bytes}, options) : nccl_buffer(bytes, device)).view(at::kBFloat16);
}

/// The time of one call, in microseconds.
template <class Call>
double time_of(Communicator& comm, const Call& call) {
  for (int i = 0; i < 3; ++i) {
    call();
  }
  this_rank().gather.synchronize();
  comm.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) {
    call();
  }
  this_rank().gather.synchronize();
  const std::chrono::duration<double, std::micro> elapsed =
      std::chrono::steady_clock::now() - start;
  return elapsed.count() / kRounds;
}

void measure(Communicator& comm, int64_t megabytes, at::Tensor buffer) {
  const Stream& stream = this_rank().gather;
  const int64_t bytes = megabytes << 20;
  const at::Tensor full = buffer.narrow(0, 0, bytes / 2 / comm.size() * comm.size());
  const int64_t length = full.numel() / comm.size();
  const at::Tensor shard = full.narrow(0, comm.rank() * length, length);
  const auto gather = [&] { comm.all_gather(0, {{full, shard}}, stream).wait(stream); };
  const auto scatter = [&] { comm.reduce_scatter(0, {{full, shard}}, stream).wait(stream); };

  const StreamScope scope(stream);
  full.zero_();
  shard.fill_(comm.rank() + 1);
  gather();
  for (int rank = 0; rank < comm.size(); ++rank) {
    require<CommError>(full.narrow(0, rank * length, length).eq(rank + 1).all().item<bool>(),
                       "all_gather: wrong values from rank ", rank);
  }
  full.fill_(comm.rank() + 1);
  scatter();
  const int sum = comm.size() * (comm.size() + 1) / 2;
  require<CommError>(shard.eq(sum).all().item<bool>(), "reduce_scatter: wrong values");
  full.zero_();

  const double gather_us = time_of(comm, gather);
  const double scatter_us = time_of(comm, scatter);
  if (comm.rank() == 0) {
    std::printf("%4ld MB: all-gather %8.1f us %6.0f GB/s, reduce-scatter %8.1f us %6.0f GB/s\n",
                static_cast<long>(megabytes), gather_us, bytes / gather_us / 1e3, scatter_us,
                bytes / scatter_us / 1e3);
  }
}

void run(int count, bool plain) {
  std::vector<c10::Device> devices;
  for (int device = 0; device < count; ++device) {
    devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  }
  auto group = make_nccl_thread_group(devices, {.timeout = std::chrono::seconds(60)});
  run_ranks(
      devices,
      [&](int rank) {
        const at::Tensor buffer = bf16_buffer(256 << 20, devices[rank], plain);
        for (const int64_t megabytes : {4, 25, 100, 200}) {
          measure(*group[rank], megabytes, buffer);
        }
        group[rank]->barrier();
      },
      [&](const std::string& reason) { group[0]->abort(reason); });
}

}  // namespace
}  // namespace reknit

int main(int argc, char** argv) {
  try {
    reknit::run(argc > 1 ? std::atoi(argv[1]) : 2, argc > 2 && std::strcmp(argv[2], "plain") == 0);
  } catch (const reknit::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
