#include "reknit/base/rank.h"

#include "reknit/base/error.h"
#include "reknit/base/error_text.h"
#include "reknit/base/gpu_arithmetic.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace reknit {
namespace {

thread_local RankContext current_rank;

}  // namespace

struct RankScope::Saved {
  RankContext context;
  bool grad_mode;
  c10::OptionalDeviceGuard device;

  Saved(const RankContext& before, bool grad) : context(before), grad_mode(grad) {}
};

const RankContext& this_rank() {
  return current_rank;
}

RankScope::RankScope(int rank, int world, c10::Device device)
    : saved_(std::make_unique<Saved>(current_rank, c10::GradMode::is_enabled())) {
  if (!device.is_cpu()) {
    saved_->device.reset_device(device);
    keep_partial_sums_wide();
  }
  c10::GradMode::set_enabled(false);
  at::set_num_threads(1);
  current_rank = RankContext{rank,
                             world,
                             device,
                             Stream::current(device),
                             Stream::create(device, true),
                             Stream::create(device, true),
                             Stream::create(device)};
}

RankScope::~RankScope() {
  current_rank = saved_->context;
  c10::GradMode::set_enabled(saved_->grad_mode);
}

void run_ranks(const std::vector<c10::Device>& devices, const std::function<void(int rank)>& body,
               const std::function<void(const std::string& reason)>& on_error) {
  const int world = static_cast<int>(devices.size());
  std::mutex mutex;
  std::exception_ptr first;
  bool first_is_echo = false;
  auto fail = [&](std::exception_ptr error, const std::string& reason, bool echo) {
    {
      std::lock_guard lock(mutex);
      const bool failed_before = first != nullptr;
      if (!failed_before || (first_is_echo && !echo)) {
        first = error;
        first_is_echo = echo;
      }
      if (failed_before) {
        return;
      }
    }
    if (on_error) {
      on_error(reason);
    }
  };
  const auto run = [&](int rank) {
    try {
      RankScope scope(rank, world, devices[rank]);
      body(rank);
    } catch (const AbortedError& error) {
      fail(std::current_exception(), first_line(error), true);
    } catch (const std::exception& error) {
      fail(std::current_exception(), first_line(error), false);
    } catch (...) {
      fail(std::current_exception(), "unknown error", false);
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(devices.size());
  for (int rank = 0; rank < world; ++rank) {
    try {
      threads.emplace_back(run, rank);
    } catch (const std::system_error& error) {
      const std::string reason =
          str("the thread of rank ", rank, " of ", world, " cannot be started: ", error.what());
      fail(std::make_exception_ptr(
               CommError(reason, "start fewer ranks, or raise the limit on threads (ulimit -u)")),
           reason, false);
      break;
    }
  }
  for (auto& thread : threads) {
    thread.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace reknit
