// reknit init: its flags.
#pragma once

#include "apps/shared_flags.h"

namespace reknit {

/// Declares the flags; the action checks what they name and returns run(options).
Action add_init(CLI::App& app, std::function<int(const InitOptions&)> run);

}  // namespace reknit
