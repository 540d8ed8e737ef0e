// reknit score: its flags.
#pragma once

#include "apps/shared_flags.h"

namespace reknit {

/// Declares the flags; the action checks what they name and returns run(options).
Action add_score(CLI::App& app, std::function<int(const ScoreOptions&)> run);

}  // namespace reknit
