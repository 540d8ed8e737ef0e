// Why a group of ranks has ended, and which error this process owes for it.
#pragma once

#include "reknit/base/error.h"

#include <optional>
#include <string>

namespace reknit {

/// Guarded by its owner's lock.
class AbortNote {
 public:
  /// The first reason stays; true for it. `own`: a rank of this process has found the error.
  bool set(const std::string& reason, bool own) {
    if (reason_) {
      return false;
    }
    reason_ = reason;
    owed_ = own;
    return true;
  }

  explicit operator bool() const { return reason_.has_value(); }

  /// Throws if there is a reason: as a CommError once where the error was found here, so that
  /// one rank has it as its own; otherwise as an AbortedError.
  void require_none() {
    if (!reason_) {
      return;
    }
    if (owed_) {
      owed_ = false;
      throw CommError(*reason_);
    }
    throw AbortedError(*reason_);
  }

 private:
  std::optional<std::string> reason_;
  bool owed_ = false;
};

}  // namespace reknit
