// reknit data: its two commands and their flags.
#pragma once

#include "apps/shared_flags.h"

namespace reknit {

/// Declares `build` and `show`; the action checks what the flags of the one that was named
/// say and returns build(options) or show(options).
Action add_data(CLI::App& app, std::function<int(const DataBuildOptions&)> build,
                std::function<int(const DataShowOptions&)> show);

}  // namespace reknit
