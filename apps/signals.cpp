#include "apps/signals.h"

#include "reknit/base/error.h"

#include <unistd.h>
#include <atomic>
#include <csignal>

namespace reknit {
namespace {

std::atomic<int> first_signal{0};
std::atomic<int> interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void on_signal(int number) {
  if (number == SIGINT && interrupts.fetch_add(1) > 0) {
    _exit(static_cast<int>(ExitCode::kStopped));
  }
  int none = 0;
  first_signal.compare_exchange_strong(none, number);
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  struct sigaction before {};
  // Under nohup a lost terminal is to be ignored.
  const bool ignores_hangup =
      sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
  for (const int number : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {
    if (number == SIGHUP && ignores_hangup) {
      continue;
    }
    require<UsageError>(sigaction(number, &action, nullptr) == 0, "signal ", number,
                        " cannot be handled");
  }
}

bool stop_requested() noexcept {
  return first_signal.load() != 0;
}

const char* stop_reason() noexcept {
  switch (first_signal.load()) {
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGINT:
      return "Ctrl-C";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "";
  }
}

}  // namespace reknit
