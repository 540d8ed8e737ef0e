#include "apps/report_flags.h"

#include "apps/validators.h"

#include <filesystem>
#include <memory>

namespace reknit {
namespace {

namespace fs = std::filesystem;

void resolve(ReportOptions& o) {
  for (const std::string& run : o.runs) {
    if (!fs::is_directory(run)) {
      throw InputError(str("there is no folder ", run),
                       "name the --out folder of a ppo or pretrain run");
    }
  }
  if (o.names.empty()) {
    for (const std::string& run : o.runs) {
      o.names.push_back(fs::path(run).lexically_normal().filename().string());
      if (o.names.back().empty()) {  // the path ended with a slash
        o.names.back() = fs::path(run).lexically_normal().parent_path().filename().string();
      }
    }
  } else if (o.names.size() != o.runs.size()) {
    throw UsageError(str(o.names.size(), " --names for ", o.runs.size(), " runs"),
                     "give one name a run, in their order");
  }
  if (o.out.empty()) {
    o.out = (fs::path(o.runs.front()) / "report.html").string();
  }
  const std::string ending = fs::path(o.out).extension().string();
  if (ending != (o.plot.empty() ? ".html" : ".svg")) {
    throw UsageError(str("--out ", o.out, " does not end in ", o.plot.empty() ? ".html" : ".svg"),
                     "a page ends in .html; one picture, which --plot KEY asks for, in .svg");
  }
}

}  // namespace

Action add_report(CLI::App& app, std::function<int(const ReportOptions&)> run) {
  auto o = std::make_shared<ReportOptions>();
  app.add_option("runs", o->runs, "Run folders; several are drawn into the same plots")
      ->required()
      ->type_name("RUN");
  app.add_option("--out", o->out, "The page to write (default: report.html in the first run)")
      ->type_name("FILE");
  app.add_option("--plot", o->plot, "One picture of this key of metrics.jsonl in place of the page")
      ->type_name("KEY");
  app.add_option("--names", o->names, "What the runs are called (default: their folders)")
      ->type_name("NAME");
  app.footer(
      "\nExamples:\n"
      "  reknit report run\n"
      "  reknit report zero3 mics --names \"ZeRO-3\" \"MiCS 2\" --out compare.html\n"
      "  reknit report zero3 mics --plot loss --out loss.svg\n"
      "\nThe page needs no network and no other file. A run that is still going can be drawn.");
  return [o, run = std::move(run)] {
    resolve(*o);
    return run(*o);
  };
}

}  // namespace reknit
