// reknit generate: its flags.
#pragma once

#include "apps/shared_flags.h"

namespace reknit {

/// Declares the flags; the action checks what they name and returns run(options).
Action add_generate(CLI::App& app, std::function<int(const GenerateOptions&)> run);

}  // namespace reknit
