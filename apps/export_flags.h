// reknit export: its flags.
#pragma once

#include "apps/shared_flags.h"

namespace reknit {

/// Declares the flags; the action returns run(options).
Action add_export(CLI::App& app, std::function<int(const ExportOptions&)> run);

}  // namespace reknit
