#include "reknit/config/finding.h"

namespace reknit {

std::string to_line(const Finding& finding) {
  std::string head = finding.path;
  if (!finding.path.empty() && !finding.value.empty()) {
    head += " = " + finding.value;
  }
  return head.empty() ? finding.text : head + ": " + finding.text;
}

void require_valid(const Findings& findings) {
  std::vector<const Finding*> errors;
  for (const Finding& finding : findings) {
    if (finding.severity == Severity::kError) {
      errors.push_back(&finding);
    }
  }
  if (errors.empty()) {
    return;
  }
  if (errors.size() == 1) {
    throw UsageError(to_line(*errors[0]), errors[0]->help);
  }
  std::string text = str(errors.size(), " settings are wrong:");
  for (const Finding* error : errors) {
    text += "\n  " + to_line(*error);
    text += error->help.empty() ? "" : "\n    (" + error->help + ")";
  }
  throw UsageError(text, "docs/deepspeed_config.md has every key");
}

}  // namespace reknit
