// Shutting a socket down makes libtorch's own thread notice a broken connection and fail
// the waits on it; the sockets are found as those that appear while it connects.
#define USE_C10D_GLOO 1

#include "reknit/comm/gloo_transport.h"

#include "reknit/base/broken_pipe.h"
#include "reknit/base/error.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>

namespace reknit {
namespace {

using namespace std::chrono_literals;

/// Deadlines are the group's; libtorch's must never come first.
constexpr std::chrono::milliseconds kNoDeadline = 24h;

/// Between two looks at whether the connections were shut down under a transfer. One that has
/// not ended a look later never will: gloo forgets a send that was queued meanwhile.
constexpr std::chrono::milliseconds kLook = 2s;

/// A connected socket; the inode tells it from a later one of the same number.
struct Socket {
  int descriptor;
  ino_t inode;

  bool operator<(const Socket& other) const {
    return std::tie(descriptor, inode) < std::tie(other.descriptor, other.inode);
  }
};

std::set<Socket> connected_sockets() {
  std::set<Socket> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    struct stat status {};
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    if (fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode) &&
        getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &length) == 0) {
      sockets.insert({descriptor, status.st_ino});
    }
  }
  return sockets;
}

std::shared_ptr<::gloo::transport::Device> device_for(const std::string& host) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (host == "127.0.0.1" || host == "localhost") {
    return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

}  // namespace

struct GlooTransport::State {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  std::vector<int> sockets;  ///< descriptors of our own: libtorch closes its own at any time
  std::atomic<bool> closed = false;
  bool stuck = false;  ///< a call of libtorch has not ended although the sockets are shut down

  /// Calls `start` and waits for the work that it returns. One start at a time in the process:
  /// libtorch's flight recorder, which all groups share, takes in a new group without a lock.
  template <class Start>
  void run(const Start& start) {
    static std::mutex one_at_a_time;
    auto work = [&] {
      std::lock_guard lock(one_at_a_time);
      return start();
    }();
    bool was_closed = false;
    while (!work->isCompleted()) {
      try {
        work->wait(kLook);
      } catch (const std::exception&) {
        if (work->isCompleted()) {
          throw;
        }
      }
      stuck = was_closed && !work->isCompleted();
      require<CommError>(!stuck, "libtorch did not end a transfer over connections shut down");
      was_closed = closed;
    }
    work->wait();
  }
};

GlooTransport::GlooTransport(const JobStore& job, const std::string& path, int rank, int size,
                             std::chrono::milliseconds timeout)
    : state_(std::make_unique<State>()) {
  const WithoutSigpipe without_sigpipe;  // libtorch makes its threads here
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->threads = 1;
  options->devices.push_back(device_for(job.host()));
  const auto store = job.connection(path, timeout).unlimited();

  static std::mutex one_at_a_time;
  std::lock_guard lock(one_at_a_time);
  const std::set<Socket> before = connected_sockets();
  // Later than its own deadline, which it does not keep where a process is stopped.
  state_->gloo = answer_within(timeout + kLook, [store, rank, size, options] {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  });
  const std::set<Socket> after = connected_sockets();
  for (const Socket& socket : after) {
    if (!before.contains(socket)) {
      const int own = fcntl(socket.descriptor, F_DUPFD_CLOEXEC, 0);
      if (own >= 0) {
        state_->sockets.push_back(own);
      }
    }
  }
}

GlooTransport::~GlooTransport() {
  if (state_->stuck) {
    // Its threads would be waited for without end: they are left asleep.
    static_cast<void>(state_->gloo.release());
  }
  state_->gloo.reset();
  for (const int socket : state_->sockets) {
    ::close(socket);
  }
}

void GlooTransport::all_gather(const at::Tensor& full, const at::Tensor& shard) {
  at::Tensor out = bytes_of(full);
  at::Tensor in = bytes_of(shard);
  c10d::AllgatherOptions options;
  options.timeout = kNoDeadline;
  state_->run([&] { return state_->gloo->_allgather_base(out, in, options); });
}

void GlooTransport::all_to_all(const at::Tensor& out, const at::Tensor& in) {
  at::Tensor out_bytes = bytes_of(out);
  at::Tensor in_bytes = bytes_of(in);
  std::vector<int64_t> equal;
  c10d::AllToAllOptions options;
  options.timeout = kNoDeadline;
  state_->run(
      [&] { return state_->gloo->alltoall_base(out_bytes, in_bytes, equal, equal, options); });
}

void GlooTransport::broadcast(const at::Tensor& tensor, int root) {
  std::vector<at::Tensor> tensors{bytes_of(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = kNoDeadline;
  state_->run([&] { return state_->gloo->broadcast(tensors, options); });
}

void GlooTransport::close() noexcept {
  state_->closed = true;
  for (const int socket : state_->sockets) {
    shutdown(socket, SHUT_RDWR);
  }
}

}  // namespace reknit
