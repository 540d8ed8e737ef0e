// The flags of reknit report.
#pragma once

#include "apps/shared_flags.h"

#include <functional>
#include <string>
#include <vector>

namespace reknit {

struct ReportOptions {
  std::vector<std::string> runs;   ///< run folders
  std::string out;                 ///< a page (.html) or one picture (.svg)
  std::string plot;                ///< of a picture: the key of metrics.jsonl
  std::vector<std::string> names;  ///< in the legend, one a run
};

int run_report(const ReportOptions& options);
Action add_report(CLI::App& app, std::function<int(const ReportOptions&)> run);

}  // namespace reknit
