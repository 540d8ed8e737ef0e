// One model's settings: config file, --set, flags and defaults brought together.
#pragma once

#include "apps/options.h"
#include "reknit/config/settings.h"

#include <string>
#include <vector>

namespace reknit {

/// What a command adds to the merge.
struct SettingsRequest {
  std::string model;          ///< "actor": heads messages; empty for a command's only model
  bool trains = true;         ///< batch triple and learning rate are needed
  int64_t default_batch = 0;  ///< micro-batch if nothing gives one; 0: none
  Precision on_cuda = Precision::kBf16;  ///< precision on CUDA if nothing says one
  std::vector<Setting> flags;            ///< what the command's own flags say
  std::vector<Setting> defaults;         ///< the command's own defaults
};

/// Fills settings.reading, resolved_json and learning_rate_from. Throws one UsageError
/// that lists all that is wrong; InputError if a config file cannot be read.
///
/// Without any config file: ZeRO-3 on several ranks. Precision: --dtype, else the
/// config's, else request.on_cuda, and fp32 on the CPU.
void resolve_model_settings(const RunOptions& run, const SettingsRequest& request,
                            ModelSettings& settings);

struct NamedSettings {
  std::string name;  ///< empty for a command's only model
  const ModelSettings* settings;
};

/// Notes and warnings of resolved settings to the log, once where they are the same for two models.
void log_notes(const RunOptions& run, const std::vector<NamedSettings>& models);

/// Lines that say what a config will do.
std::vector<std::string> describe(const ConfigReading& reading, const RunShape& shape);

}  // namespace reknit
