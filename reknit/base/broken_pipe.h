// Writes to connections whose reader has gone.
#pragma once

#include <csignal>
#include <ctime>

namespace reknit {

/// While it lives, in its thread and in threads started by it: a write to a broken pipe or
/// connection is an error of the write. SIGPIPE, which would end the process, is blocked.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 0) {
      const timespec at_once{};
      sigtimedwait(&pipe_, nullptr, &at_once);  // takes one that came meanwhile
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

}  // namespace reknit
