// The last words of a failed run.
#pragma once

#include <exception>
#include <string>

namespace reknit {

/// Prints `error:` and `help:` lines on standard error, once, writes the file that
/// torchrun asks for (TORCHELASTIC_ERROR_FILE), and returns the exit code. Anything but a
/// reknit::Error counts as a bug of ours and the message says what to report, except memory
/// or a device that has failed, which is exit 4, and a path that cannot be looked at, exit 3. A
/// SaidError is only turned into its code.
int report_error(const std::exception& error) noexcept;

}  // namespace reknit
