// Where commands may write: never over what they read.
#pragma once

#include "apps/options.h"

#include <string>
#include <vector>

namespace reknit {

/// Throws UsageError naming the flag unless a file could be written at `path` (empty: none).
void require_out_file(const std::string& flag, const std::string& path);

/// UsageError if a file that `flag` writes at `path` (empty: none) would take the place of one
/// of `inputs`, or of a file in one that is a folder. Empty inputs count for nothing.
void keep_inputs_from_file(const std::string& flag, const std::string& path,
                           const std::vector<std::string>& inputs);

/// The same for a run folder: --overwrite empties all of it, a run that goes on replaces its
/// models. Also for --trace. The config counts as an input.
void keep_inputs_from_run(const TrainOptions& options, std::vector<std::string> inputs);

/// --overwrite of a model's folder replaces it whole: UsageError if `out` holds anything that is
/// no part of a model, a folder with an input in it among them.
void require_replaceable_model(const std::string& out);

}  // namespace reknit
