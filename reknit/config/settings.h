// Where a setting comes from: the config file, --set, a flag, or our default; and what
// happens when two of them speak.
#pragma once

#include "reknit/config/finding.h"

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace reknit {

/// One value for one key.
struct Setting {
  std::string path;
  nlohmann::json value;
  std::string origin;  ///< "--set", "--zero-stage": what messages name
};

/// "a.b=c": c is read as JSON, and as a text if it is none (optimizer.type=AdamW).
/// Throws UsageError without a "=" or a path.
Setting parse_set(const std::string& text);

struct ResolvedSettings {
  nlohmann::json config;                       ///< today's names
  std::map<std::string, std::string> origins;  ///< of what the file did not give
};

/// Merges. `overrides` (--set) replace what `file` says. A flag adds a value; where the
/// file or an override has another one, an error names both. `defaults` fill what is
/// still open. "auto" in the file gives way to anything. Adds to `findings`; throws only
/// for a path that runs through a value.
ResolvedSettings resolve_settings(const nlohmann::json& file, const std::string& file_name,
                                  const std::vector<Setting>& overrides,
                                  const std::vector<Setting>& flags,
                                  const std::vector<Setting>& defaults, Findings& findings);

}  // namespace reknit
