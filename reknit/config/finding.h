// What a validation found: all of it, reported together.
#pragma once

#include "reknit/base/error.h"

#include <algorithm>
#include <string>
#include <vector>

namespace reknit {

enum class Severity {
  kNote,     ///< worth knowing; nothing to change
  kWarning,  ///< allowed, but perhaps not what was meant
  kError,    ///< nothing may be started
};

struct Finding {
  Severity severity = Severity::kError;
  std::string path;   ///< the key, "zero_optimization.stage"; empty for the whole config
  std::string value;  ///< the value as JSON; may be empty
  std::string text;   ///< one sentence
  std::string help;   ///< what to do; may be empty
};

using Findings = std::vector<Finding>;

inline bool has_errors(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& f) { return f.severity == Severity::kError; });
}

/// "path = value: text", the form of every line that shows a finding.
std::string to_line(const Finding& finding);

/// Throws one UsageError that lists every error among `findings`; else returns.
void require_valid(const Findings& findings);

}  // namespace reknit
