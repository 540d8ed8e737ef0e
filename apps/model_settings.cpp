#include "apps/model_settings.h"

#include "reknit/base/format.h"
#include "reknit/base/log.h"
#include "reknit/config/json_path.h"
#include "reknit/config/json_text.h"

#include <strings.h>

#include <map>

namespace reknit {
namespace {

using nlohmann::json;

std::string flag_name(const std::string& model, const std::string& rest) {
  return model.empty() ? "--" + rest : str("--", model, "-", rest);
}

std::vector<Setting> flag_settings(const RunOptions& run, const SettingsRequest& request,
                                   const ModelSettings& own) {
  std::vector<Setting> flags = request.flags;
  if (own.zero_stage) {
    flags.push_back(
        {"zero_optimization.stage", *own.zero_stage, flag_name(request.model, "zero-stage")});
  }
  if (own.learning_rate) {
    flags.push_back(
        {"optimizer.params.lr", *own.learning_rate, flag_name(request.model, "learning-rate")});
  }
  if (own.weight_decay) {
    flags.push_back({"optimizer.params.weight_decay", *own.weight_decay,
                     flag_name(request.model, "weight-decay")});
  }
  if (!run.dtype.empty()) {
    flags.push_back({"fp16.enabled", run.dtype == "fp16", "--dtype " + run.dtype});
    flags.push_back({"bf16.enabled", run.dtype == "bf16", "--dtype " + run.dtype});
  }
  return flags;
}

/// Whether a command's default of Adam's betas is meant for the optimizer of the config.
bool is_adam(const json& given) {
  const json* type = find_path(given, "optimizer.type");
  if (type == nullptr || !type->is_string()) {
    return true;
  }
  const auto name = type->get<std::string>();
  return strcasecmp(name.c_str(), "adam") == 0 || strcasecmp(name.c_str(), "adamw") == 0;
}

/// What fills the gaps, given what the file, --set and the flags have said.
std::vector<Setting> default_settings(const RunOptions& run, const SettingsRequest& request,
                                      const json& given, bool has_file) {
  std::vector<Setting> defaults = request.defaults;
  if (!is_adam(given)) {
    std::erase_if(defaults, [](const Setting& s) { return s.path == "optimizer.params.betas"; });
  }
  auto is_given = [&](const char* path) {
    const json* value = find_path(given, path);
    return value != nullptr && !value->is_null() && *value != json("auto");
  };
  if (!has_file && run.place.ranks > 1) {
    defaults.push_back({"zero_optimization.stage", 3, "default"});
  }
  if (run.place.cuda && !is_given("fp16.enabled") && !is_given("bf16.enabled")) {
    defaults.push_back({str(to_string(request.on_cuda), ".enabled"), true, "default"});
  }
  if (request.trains) {
    defaults.push_back({"optimizer.type", "AdamW", "default"});
  }
  if (request.default_batch > 0 && !is_given("train_batch_size") &&
      !is_given("train_micro_batch_size_per_gpu")) {
    defaults.push_back({"train_micro_batch_size_per_gpu", request.default_batch, "default"});
  }
  return defaults;
}

/// A rate must be given somewhere: by flag, by optimizer, or by the schedule's peak.
void find_learning_rate(const SettingsRequest& request, const ResolvedSettings& resolved,
                        const std::string& file, ModelSettings& settings) {
  DeepSpeedConfig& config = settings.reading.config;
  const SchedulerConfig& schedule = config.scheduler;
  if (config.optimizer.lr) {
    const auto origin = resolved.origins.find("optimizer.params.lr");
    settings.learning_rate_from = origin == resolved.origins.end() ? file : origin->second;
    return;
  }
  const auto take = [&](std::optional<double> rate, const char* from) {
    if (rate && !config.optimizer.lr) {
      config.optimizer.lr = rate;
      settings.learning_rate_from = from;
    }
  };
  take(schedule.warmup_max_lr, "scheduler.params.warmup_max_lr");
  take(schedule.cycle_max_lr, "scheduler.params.cycle_max_lr");
  if (schedule.type == "LRRangeTest") {
    take(schedule.lr_range_test_min_lr, "scheduler.params.lr_range_test_min_lr");
  }
  if (config.optimizer.lr) {
    return;
  }
  settings.reading.findings.push_back(
      {Severity::kError, request.model, "", "there is no learning rate",
       str("pass ", flag_name(request.model, "learning-rate"),
           ", or set optimizer.params.lr in the config",
           request.model == "actor"    ? " (DeepSpeed-Chat's default is 9.65e-6)"
           : request.model == "critic" ? " (DeepSpeed-Chat's default is 5e-6)"
                                       : "")});
}

std::string optimizer_line(const OptimizerConfig& o) {
  std::string line = str("optimizer: ", o.type, ", rate ", o.lr ? str(*o.lr) : "from a flag");
  if (o.momentum) {
    line += str(", momentum ", *o.momentum);
  }
  if (o.type != "sgd" && o.type != "adagrad") {
    line += str(", betas ", o.betas[0], " ", o.betas[1]);
  }
  const bool in_gradient =
      o.type == "sgd" || o.type == "adagrad" || (o.type == "adam" && !o.adam_w_mode);
  return line + str(", weight decay ", o.weight_decay,
                    in_gradient ? " (added to the gradient)" : " (decoupled)",
                    o.decay_all ? ", of norms and biases as well" : ", not of norms and biases");
}

}  // namespace

void resolve_model_settings(const RunOptions& run, const SettingsRequest& request,
                            ModelSettings& settings) {
  const std::string path = settings.config_file.empty() ? run.config_file : settings.config_file;
  const std::string file = path.empty() ? "default" : path;
  std::vector<Setting> overrides;
  for (const std::string& text : run.sets) {
    overrides.push_back(parse_set(text));
  }
  const std::vector<Setting> flags = flag_settings(run, request, settings);
  const json given = path.empty() ? json::object() : read_json_file(path);
  Findings merging;
  const ResolvedSettings said = resolve_settings(given, file, overrides, flags, {}, merging);
  Findings ignored;
  const ResolvedSettings resolved =
      resolve_settings(given, file, overrides, flags,
                       default_settings(run, request, said.config, !path.empty()), ignored);
  const RunShape shape{run.place.ranks, run.place.ranks_from, run.place.nodes, run.place.nodes_from,
                       request.trains};
  settings.reading = read_deepspeed(resolved.config, shape, file, resolved.origins);
  Findings& findings = settings.reading.findings;
  findings.insert(findings.begin(), merging.begin(), merging.end());
  if (request.trains) {
    find_learning_rate(request, resolved, file, settings);
  }
  require_valid(findings);
  settings.resolved_json = resolved.config.dump(2);
}

void log_notes(const RunOptions& run, const std::vector<NamedSettings>& models) {
  if (!run.place.leads()) {
    return;
  }
  std::vector<std::pair<Severity, std::string>> lines;
  std::map<std::string, std::string> whose;  ///< by line
  for (const auto& [name, settings] : models) {
    for (const Finding& finding : settings->reading.findings) {
      const std::string line = to_line(finding);
      const auto [said, is_new] = whose.try_emplace(line, name);
      if (is_new) {
        lines.emplace_back(finding.severity, line);
      } else if (said->second != name) {
        said->second += " and " + name;
      }
    }
  }
  for (const auto& [severity, line] : lines) {
    const std::string text = (whose[line].empty() ? "" : whose[line] + ": ") + line;
    severity == Severity::kWarning ? log_warning(text) : log_info(text);
  }
}

std::vector<std::string> describe(const ConfigReading& reading, const RunShape& shape) {
  const DeepSpeedConfig& c = reading.config;
  std::vector<std::string> lines;
  if (reading.batch.global > 0) {
    const BatchSizes& b = reading.batch;
    lines.push_back(str("batch: ", plural(b.global, "sequence"), " a step = ", b.micro,
                        " a rank x ", b.accumulation,
                        b.accumulation == 1 ? " micro-batch" : " micro-batches", " x ",
                        plural(b.ranks, "rank")));
  } else {
    lines.push_back("batch: the config leaves it to the run's --batch");
  }
  std::string precision = to_string(c.precision());
  if (c.fp16.enabled) {
    precision += c.fp16.loss_scale > 0
                     ? str(", loss scale ", c.fp16.loss_scale)
                     : str(", dynamic loss scale from 2^", c.fp16.initial_scale_power, ", window ",
                           c.fp16.loss_scale_window, ", hysteresis ", c.fp16.hysteresis);
  }
  lines.push_back("precision: " + precision +
                  (c.precision() == Precision::kFp32 ? "" : ", fp32 masters"));
  constexpr const char* kSharded[] = {"nothing is sharded", "optimizer states are sharded",
                                      "optimizer states and gradients are sharded",
                                      "parameters, gradients and optimizer states are sharded"};
  const int64_t over = c.zero.mics_shard_size > 0 ? c.zero.mics_shard_size : shape.ranks;
  lines.push_back(str("ZeRO-", c.zero.stage, ": ", kSharded[c.zero.stage],
                      c.zero.stage == 0 ? "" : " over " + plural(over, "rank")));
  if (c.zero.stage == 3) {
    lines.push_back(str("parameters of up to ", c.zero.persistence_threshold,
                        " elements stay whole; ",
                        c.zero.prefetch_bucket_size > 0 && c.zero.overlap_comm
                            ? "the next group is gathered while one is in use"
                            : "nothing is gathered ahead"));
  }
  lines.push_back(c.gradient_clipping > 0
                      ? str("gradients are clipped at a global norm of ", c.gradient_clipping)
                      : std::string("gradients are not clipped"));
  if (!c.optimizer.type.empty()) {
    lines.push_back(optimizer_line(c.optimizer));
  }
  lines.push_back("schedule: " +
                  (c.scheduler.type.empty() ? std::string("constant rate") : c.scheduler.type));
  return lines;
}

}  // namespace reknit
