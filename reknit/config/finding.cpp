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
  std::string text =
      errors.size() == 1 ? to_line(*errors[0]) : str(errors.size(), " settings are wrong:");
  std::string help;
  for (const Finding* error : errors) {
    if (errors.size() > 1) {
      text += "\n  " + to_line(*error);
    }
    if (!error->help.empty() && help.find(error->help) == std::string::npos) {
      help += (help.empty() ? "" : "\n  ") + error->help;
    }
  }
  throw UsageError(text, help);
}

}  // namespace reknit
