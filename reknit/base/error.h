// The one error idiom: typed exceptions with a sentence, a remedy, an exit code.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace reknit {

/// What the process ends with; the numbers are part of the command's contract.
enum class ExitCode : int {
  kDone = 0,
  kBug = 1,      ///< a bug of ours
  kUsage = 2,    ///< command line, config or hardware; nothing was started
  kInput = 3,    ///< an input file is missing, damaged or of another kind
  kRank = 4,     ///< a rank, a collective or a device failed
  kNumbers = 5,  ///< NaN in an unmasked place, loss scale at its floor
  kStopped = 130,
};

/// Base of everything the library throws. `what()` is one sentence with the
/// names and values involved; `help()` says what to do and may be empty.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& sentence, std::string help = "")
      : std::runtime_error(sentence), code_(code), help_(std::move(help)) {}

  ExitCode code() const noexcept { return code_; }
  const std::string& help() const noexcept { return help_; }

 private:
  ExitCode code_;
  std::string help_;
};

/// The command line, a setting or the hardware is wrong (exit 2).
struct UsageError : Error {
  explicit UsageError(const std::string& sentence, std::string help = "")
      : Error(ExitCode::kUsage, sentence, std::move(help)) {}
};

/// A file is missing, damaged or of another kind (exit 3).
struct InputError : Error {
  explicit InputError(const std::string& sentence, std::string help = "")
      : Error(ExitCode::kInput, sentence, std::move(help)) {}
};

/// A rank, a collective or a device failed (exit 4).
struct CommError : Error {
  explicit CommError(const std::string& sentence, std::string help = "")
      : Error(ExitCode::kRank, sentence, std::move(help)) {}
};

/// A collective that another rank's failure has ended: an echo of the first error,
/// which that rank throws itself.
struct AbortedError : CommError {
  using CommError::CommError;
};

/// The numbers failed (exit 5).
struct NumbersError : Error {
  explicit NumbersError(const std::string& sentence, std::string help = "")
      : Error(ExitCode::kNumbers, sentence, std::move(help)) {}
};

/// A parameter, gradient or slot was used in a state in which it does not hold
/// its value: a bug in the calling code (exit 1).
struct StateError : Error {
  explicit StateError(const std::string& sentence, std::string help = "")
      : Error(ExitCode::kBug, sentence, std::move(help)) {}
};

/// Joins its arguments with operator<<: `str("rank ", 3, " of ", 4)`.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// Throws `Error(str(parts...))` unless `ok`.
template <class ErrorType, class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]] {
    throw ErrorType(str(parts...));
  }
}

/// An internal invariant; a failure is a bug of ours and says where.
#define REKNIT_INVARIANT(condition, ...)                                             \
  do {                                                                               \
    if (!(condition)) [[unlikely]] {                                                 \
      throw ::reknit::StateError(                                                    \
          ::reknit::str(__FILE__, ":", __LINE__, ": ", ::reknit::str(__VA_ARGS__))); \
    }                                                                                \
  } while (false)

}  // namespace reknit
