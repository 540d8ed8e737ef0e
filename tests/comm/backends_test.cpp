#include "tests/comm/backends.h"

#include "reknit/base/random.h"
#include "reknit/base/rank.h"
#include "reknit/comm/fault.h"
#include "reknit/comm/gloo.h"
#include "reknit/comm/nccl.h"
#include "reknit/comm/threads.h"
#include "tests/support/processes.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

namespace reknit::test {
namespace {

using namespace std::chrono_literals;

void run_threads(std::vector<std::unique_ptr<Communicator>> group,
                 const std::vector<c10::Device>& devices,
                 const std::function<void(Communicator&)>& body) {
  run_ranks(
      devices, [&](int rank) { body(*group[rank]); },
      [&](const std::string& reason) { group[0]->abort(reason); });
}

Backend threads(int size) {
  return {"threads", size, 300ms, [size](const auto& options, const auto& body) {
            run_threads(make_thread_group(size, options), std::vector<c10::Device>(size, c10::kCPU),
                        body);
          }};
}

/// Threads whose every operation starts and ends a little late, in no order.
Backend late_threads(int size) {
  return {"late_threads", size, 300ms, [size](const auto& options, const auto& body) {
            const auto plan = [](CommKind kind, int64_t index, int rank) {
              const auto key = mix(mix(static_cast<uint64_t>(kind), index), rank);
              return Fault{.delay_start = std::chrono::milliseconds(key % 3),
                           .delay_result = std::chrono::milliseconds((key >> 8) % 3)};
            };
            auto group = make_thread_group(size, options);
            for (auto& rank : group) {
              rank = make_fault(std::move(rank), plan);
            }
            run_threads(std::move(group), std::vector<c10::Device>(size, c10::kCPU), body);
          }};
}

/// Processes: the test runs again in each.
Backend gloo(int size) {
  return {"gloo", size, 300ms, [size](const auto& options, const auto& body) {
            const auto place = process_place();
            if (!place) {
              EXPECT_EQ(run_in_processes(size), std::vector<int>(size, 0));
              return;
            }
            const RankScope scope(place->rank, place->world, c10::kCPU);
            // Processes start at different times; the group's own deadline may be short.
            auto meeting = make_gloo(*place);
            meeting->barrier();
            auto group = make_gloo(*place, options);
            try {
              body(*group);
            } catch (const std::exception& error) {
              group->abort(error.what());
              throw;
            }
          }};
}

int num_gpus() {
  return at::globalContext().hasCUDA() ? c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() : 0;
}

/// Threads that share the first GPU.
Backend shared_gpu(int size) {
  return {"shared_gpu", size, 1000ms, [size](const auto& options, const auto& body) {
            run_threads(make_thread_group(size, options),
                        std::vector<c10::Device>(size, c10::Device(c10::kCUDA, 0)), body);
          }};
}

std::vector<c10::Device> first_gpus(int count) {
  std::vector<c10::Device> devices;
  for (int device = 0; device < count; ++device) {
    devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  }
  return devices;
}

/// Threads with a GPU each that copy between them.
Backend gpus(int size) {
  return {"gpus", size, 1000ms, [size](const auto& options, const auto& body) {
            run_threads(make_thread_group(size, options), first_gpus(size), body);
          }};
}

Backend nccl(int size) {
  return {"nccl", size, 4s, [size](const auto& options, const auto& body) {
            run_threads(make_nccl_thread_group(first_gpus(size), options), first_gpus(size), body);
          }};
}

}  // namespace

std::vector<Backend> backends() {
  std::vector<Backend> all;
  for (int size : {1, 2, 3, 5, 8}) {
    all.push_back(threads(size));
  }
  all.push_back(late_threads(4));
  for (int size : {1, 3}) {
    all.push_back(gloo(size));
  }
  const int count = num_gpus();
  if (count >= 1) {
    all.push_back(shared_gpu(3));
  }
  if (count >= 2) {
    all.push_back(gpus(2));
  }
  for (int size = 1; nccl_available() && size <= count; size *= 2) {
    all.push_back(nccl(size));
  }
  return all;
}

}  // namespace reknit::test
