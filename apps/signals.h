// Orderly stops: SIGTERM, SIGUSR1, SIGHUP and Ctrl-C ask; a second Ctrl-C stops at once.
#pragma once

namespace reknit {

/// From here on those signals only set a flag. A second Ctrl-C ends the process with
/// exit code 130 without anything more. SIGHUP stays ignored where it was (nohup). Call once, from
/// the main thread.
void install_stop_signals();

/// True once one has come. Loops look at it between steps and agree on it over ranks.
bool stop_requested() noexcept;

/// "SIGTERM", "SIGUSR1", "SIGHUP", "Ctrl-C": the first one that came; "" if none has.
const char* stop_reason() noexcept;

}  // namespace reknit
