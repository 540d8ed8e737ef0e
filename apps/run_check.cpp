// reknit check: what a config will do, and all that is wrong with it.
#include "apps/commands.h"
#include "apps/model_settings.h"
#include "reknit/base/format.h"
#include "reknit/config/json_path.h"
#include "reknit/config/json_text.h"

#include <iostream>

namespace reknit {
namespace {

std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::string out;
  for (const int64_t rank : ranks) {
    out += str(out.empty() ? "" : " ", rank);
  }
  return out;
}

void print_groups(const char* title, const std::vector<std::vector<int64_t>>& groups) {
  std::cout << title << "\n";
  for (size_t group = 0; group < groups.size(); ++group) {
    std::cout << "  " << group << ": " << ranks_text(groups[group]) << "\n";
  }
}

void print_mics(const DeepSpeedConfig& config, const RunShape& shape) {
  const int64_t size = config.zero.mics_shard_size;
  if (size < 1 || shape.ranks % size != 0 || shape.ranks % shape.nodes != 0) {
    return;
  }
  print_groups("MiCS shard groups, by rank (each holds one full copy):",
               shard_groups(shape.ranks, size));
  print_groups("MiCS replica groups, by rank (each holds the same shard):",
               replica_groups(shape.ranks, size));
  const int64_t local = shape.ranks / shape.nodes;
  if (config.zero.mics_hierarchical && size > local && size % local == 0) {
    print_groups("hierarchical gather, first across nodes, by rank:",
                 node_groups(shape.ranks, size, local));
    print_groups("hierarchical gather, then inside each node, by rank:",
                 shard_groups(shape.ranks, local));
  }
}

void print_findings(const Findings& findings, Severity severity, const char* title) {
  bool first = true;
  for (const Finding& finding : findings) {
    if (finding.severity == severity) {
      std::cout << (first ? title : "") << (first ? "\n" : "") << "  " << to_line(finding) << "\n";
      first = false;
    }
  }
}

void print_config(const nlohmann::json& given, const ConfigReading& reading,
                  const RunShape& shape) {
  for (const std::string& line : describe(reading, shape)) {
    std::cout << "  " << line << "\n";
  }
  const bool says_precision =
      find_path(given, "fp16.enabled") != nullptr || find_path(given, "bf16.enabled") != nullptr;
  if (!says_precision && reading.config.precision() == Precision::kFp32) {
    std::cout << "  (no precision is given: on a GPU a run takes bf16, or what --dtype says)\n";
  }
  print_mics(reading.config, shape);
}

}  // namespace

int run_check(const CheckOptions& options) {
  const std::string file = options.config_file.empty() ? "default" : options.config_file;
  std::vector<Setting> overrides;
  for (const std::string& text : options.sets) {
    overrides.push_back(parse_set(text));
  }
  const nlohmann::json given =
      options.config_file.empty() ? nlohmann::json::object() : read_json_file(options.config_file);
  Findings findings;
  std::vector<Setting> flags;
  if (options.batch) {
    flags.push_back({"train_micro_batch_size_per_gpu", *options.batch, "--batch"});
  }
  const ResolvedSettings resolved = resolve_settings(given, file, overrides, flags, {}, findings);
  // A config without a batch size leaves it to the command that runs it.
  const RunShape shape{options.ranks, "--ranks", options.nodes, "--nodes", false};
  const ConfigReading reading = read_deepspeed(resolved.config, shape, file, resolved.origins);
  findings.insert(findings.end(), reading.findings.begin(), reading.findings.end());

  std::cout << file << " on " << plural(shape.ranks, "rank") << ", " << plural(shape.nodes, "node")
            << ":\n";
  if (!has_errors(findings)) {
    print_config(resolved.config, reading, shape);
  }
  print_findings(findings, Severity::kNote, "notes:");
  print_findings(findings, Severity::kWarning, "warnings:");
  std::cout.flush();
  require_valid(findings);
  std::cout << "this config is fine\n";
  return 0;
}

}  // namespace reknit
