// reknit env: its flags.
#pragma once

#include "apps/shared_flags.h"

namespace reknit {

/// Declares the flags (none); the action returns run(options).
Action add_env(CLI::App& app, std::function<int(const EnvOptions&)> run);

}  // namespace reknit
