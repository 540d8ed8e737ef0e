// reknit check: its flags.
#pragma once

#include "apps/shared_flags.h"

namespace reknit {

/// Declares the flags; the action returns run(options).
Action add_check(CLI::App& app, std::function<int(const CheckOptions&)> run);

}  // namespace reknit
