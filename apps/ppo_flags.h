// reknit ppo: its flags.
#pragma once

#include "apps/shared_flags.h"

namespace reknit {

/// Declares the flags on `app`; the action checks what they name, resolves places and
/// configs (PpoOptions is then complete) and returns run(options).
Action add_ppo(CLI::App& app, std::function<int(const PpoOptions&)> run);

}  // namespace reknit
