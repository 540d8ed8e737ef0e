// The flags of reknit pretrain.
#pragma once

#include "apps/shared_flags.h"

namespace reknit {

Action add_pretrain(CLI::App& app, std::function<int(const PretrainOptions&)> run);

/// Checks and completes what the flags filled; see PretrainOptions. `given`: whether a flag
/// was on the command line.
void finish_pretrain(PretrainOptions& options, const std::function<bool(const char*)>& given);

}  // namespace reknit
