// reknit report: the metrics of runs as a page of plots, or one plot as a picture.
#include "apps/plot.h"
#include "apps/report_flags.h"
#include "reknit/base/atomic_file.h"
#include "reknit/base/error.h"
#include "reknit/checkpoint/json_text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>

namespace reknit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// What a run wrote: the numbers of each key by step, and the order in which the keys came.
struct Run {
  std::string name;
  std::vector<std::string> keys;
  std::map<std::string, std::vector<std::pair<double, double>>> points;
  Json summary;  ///< null before its end
};

/// Numbers and truth values; those of objects under "outer.inner".
void add_numbers(Run& run, const Json& object, const std::string& prefix, double step) {
  for (const auto& [name, value] : object.items()) {
    const std::string key = prefix + name;
    if (value.is_object()) {
      add_numbers(run, value, key + ".", step);
    } else if ((value.is_number() || value.is_boolean()) && key != "step") {
      if (!run.points.contains(key)) {
        run.keys.push_back(key);
      }
      run.points[key].emplace_back(step,
                                   value.is_boolean() ? value.get<bool>() : value.get<double>());
    }
  }
}

void read_metrics(Run& run, const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw InputError(str("there is no ", path), "name the --out folder of a ppo or pretrain run");
  }
  std::string line;
  for (int64_t number = 1; std::getline(file, line) && !file.eof(); ++number) {
    const std::string where = str(path, ", line ", number);
    const Json object = parse_ordered_json(line, where);
    if (!object.is_object() || !object.contains("step") || !object["step"].is_number()) {
      throw InputError(str(where, " is no object with a step"), "is it a run's metrics.jsonl?");
    }
    add_numbers(run, object, "", object["step"].get<double>());
  }
  if (run.keys.empty()) {
    throw InputError(str(path, " holds no whole line yet"), "wait for the first step");
  }
}

Run read_run(const std::string& folder, const std::string& name) {
  Run run;
  run.name = name;
  read_metrics(run, (fs::path(folder) / "metrics.jsonl").string());
  const std::string summary = (fs::path(folder) / "summary.json").string();
  if (fs::exists(summary)) {
    run.summary = Json(read_json_object(summary));
  }
  return run;
}

/// All keys, in the order of the first run and then of the others.
std::vector<std::string> all_keys(const std::vector<Run>& runs) {
  std::vector<std::string> keys;
  for (const Run& run : runs) {
    for (const std::string& key : run.keys) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        keys.push_back(key);
      }
    }
  }
  return keys;
}

Plot plot_of(const std::vector<Run>& runs, const std::string& key) {
  Plot plot{key, "step", {}};
  for (const Run& run : runs) {
    const auto found = run.points.find(key);
    if (found != run.points.end()) {
      plot.curves.push_back({runs.size() > 1 ? run.name : "", found->second});
    }
  }
  return plot;
}

bool changes(const Plot& plot) {
  return std::any_of(plot.curves.begin(), plot.curves.end(), [](const Curve& curve) {
    return std::any_of(curve.points.begin(), curve.points.end(), [&](const auto& point) {
      return point.second != curve.points.front().second;
    });
  });
}

/// A table with a column a run.
class Table {
 public:
  explicit Table(const std::vector<Run>& runs) {
    cells_ = "<table>\n<tr><th></th>";
    for (const Run& run : runs) {
      cells_ += str("<th>", escaped(run.name), "</th>");
    }
    cells_ += "</tr>\n";
  }
  void row(const std::string& head, const std::vector<std::string>& values) {
    cells_ += str("<tr><td>", escaped(head), "</td>");
    for (const std::string& value : values) {
      cells_ += str("<td>", escaped(value), "</td>");
    }
    cells_ += "</tr>\n";
    ++rows_;
  }
  std::string html(const std::string& title) const {
    return rows_ == 0 ? "" : str("<h2>", title, "</h2>\n", cells_, "</table>\n");
  }

 private:
  std::string cells_;
  int rows_ = 0;
};

std::string shown(double value) {
  return nlohmann::json(value).dump();
}

std::string summaries(const std::vector<Run>& runs) {
  Table table(runs);
  for (const char* key : {"command", "ranks", "steps", "planned_steps", "seconds"}) {
    std::vector<std::string> values;
    for (const Run& run : runs) {
      const bool there = run.summary.is_object() && run.summary.contains(key);
      const Json value = there ? run.summary[key] : Json("not ended");
      values.push_back(value.is_string() ? value.get<std::string>() : value.dump());
    }
    table.row(key, values);
  }
  return table.html("Runs");
}

std::string constants(const std::vector<Run>& runs, const std::vector<std::string>& keys) {
  Table table(runs);
  for (const std::string& key : keys) {
    std::vector<std::string> values;
    for (const Run& run : runs) {
      const auto found = run.points.find(key);
      values.push_back(found == run.points.end() ? "" : shown(found->second.front().second));
    }
    table.row(key, values);
  }
  return table.html("What did not change");
}

constexpr const char* kHead =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n<style>\n"
    "body { font: 15px sans-serif; margin: 2em auto; max-width: 1340px; padding: 0 1em; color: "
    "#222 }\n"
    "table { border-collapse: collapse } td, th { padding: 2px 12px; text-align: right;\n"
    "  border-bottom: 1px solid #ddd } td:first-child { text-align: left }\n"
    ".plots { display: flex; flex-wrap: wrap; gap: 12px } svg { max-width: 100%; height: auto }\n"
    "</style>\n";

std::string page(const std::vector<Run>& runs) {
  std::string title = "Reknit:";
  for (const Run& run : runs) {
    title += " " + run.name;
  }
  std::string plots;
  std::vector<std::string> flat;
  for (const std::string& key : all_keys(runs)) {
    const Plot plot = plot_of(runs, key);
    if (changes(plot)) {
      plots += svg(plot);
    } else {
      flat.push_back(key);
    }
  }
  return str(kHead, "<title>", escaped(title), "</title></head><body>\n<h1>", escaped(title),
             "</h1>\n", summaries(runs), "<h2>By step</h2>\n<div class=\"plots\">\n", plots,
             "</div>\n", constants(runs, flat), "</body></html>\n");
}

std::string picture(const std::vector<Run>& runs, const std::string& key) {
  const Plot plot = plot_of(runs, key);
  if (plot.curves.empty()) {
    std::string known;
    for (const std::string& name : all_keys(runs)) {
      known += (known.empty() ? "" : ", ") + name;
    }
    throw UsageError(str("--plot ", key, ": no run has this key"), "they have " + known);
  }
  return svg(plot);
}

}  // namespace

int run_report(const ReportOptions& options) {
  std::vector<Run> runs;
  for (size_t i = 0; i < options.runs.size(); ++i) {
    runs.push_back(read_run(options.runs[i], options.names[i]));
  }
  write_file(options.out, options.plot.empty() ? page(runs) : picture(runs, options.plot));
  std::cout << options.out << "\n";
  return 0;
}

}  // namespace reknit
