#include "reknit/config/deepspeed_checks.h"

#include "reknit/config/deepspeed_keys.h"
#include "reknit/config/json_path.h"
#include "reknit/config/json_text.h"

#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using nlohmann::json;

void wrong(ConfigReading& reading, std::string path, std::string value, std::string text,
           std::string help = "") {
  reading.findings.push_back(
      {Severity::kError, std::move(path), std::move(value), std::move(text), std::move(help)});
}

/// The parameters of each schedule.
const std::map<std::string, std::vector<std::string>>& schedule_params() {
  static const std::map<std::string, std::vector<std::string>> params = {
      {"WarmupLR", {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"}},
      {"WarmupDecayLR",
       {"total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"}},
      {"WarmupCosineLR",
       {"total_num_steps", "warmup_min_ratio", "warmup_num_steps", "cos_min_ratio", "warmup_type"}},
  };
  return params;
}

void check_hierarchical(const RunShape& shape, ConfigReading& reading) {
  const int64_t size = reading.config.zero.mics_shard_size;
  const std::string path = "zero_optimization.mics_hierarchical_params_gather";
  if (size < 1) {
    wrong(reading, path, "true", "needs zero_optimization.mics_shard_size");
    return;
  }
  const int64_t local = shape.ranks / shape.nodes;
  if (size <= local || size % local != 0) {
    wrong(reading, path, "true",
          str("the shard group must span whole nodes, and more than one: mics_shard_size ", size,
              " with ", local, " ranks a node (", shape.ranks, " ranks, ", shape.ranks_from, "; ",
              shape.nodes, " nodes, ", shape.nodes_from, ")"),
          size <= local ? "turn the hierarchical gather off: the group is inside one node"
                        : str("make mics_shard_size a multiple of ", local));
  }
}

void check_secondary(const RunShape& shape, ConfigReading& reading) {
  const ZeroConfig& zero = reading.config.zero;
  const int64_t local = shape.ranks / shape.nodes;
  if (zero.hpz_partition_size <= 1) {
    return;
  }
  const std::string path = "zero_optimization.zero_hpz_partition_size";
  const std::string value = str(zero.hpz_partition_size);
  if (zero.stage != 3) {
    wrong(reading, path, value, str("needs zero_optimization.stage 3, not ", zero.stage));
  }
  if (zero.mics_shard_size != -1) {
    wrong(reading, path, value, "cannot be combined with zero_optimization.mics_shard_size",
          "keep one of the two: both keep gathers inside a node");
  }
  if (local % zero.hpz_partition_size != 0) {
    wrong(reading, path, value,
          str("does not divide the ", local, " ranks of a node (", shape.ranks, " ranks, ",
              shape.ranks_from, "; ", shape.nodes, " nodes, ", shape.nodes_from, ")"));
  }
}

}  // namespace

void check_precision(const json& config, ConfigReading& reading) {
  const DeepSpeedConfig& c = reading.config;
  if (c.fp16.enabled && c.bf16.enabled) {
    wrong(reading, "", "", "fp16.enabled and bf16.enabled are both true", "keep one of the two");
  }
  const bool dynamic = c.fp16.enabled && c.fp16.loss_scale == 0;
  if (dynamic && c.fp16.min_loss_scale <= 0) {
    wrong(reading, "fp16.min_loss_scale", str(c.fp16.min_loss_scale),
          "must be above 0 when the loss scale is dynamic");
  }
  const json* dtype = find_path(config, "data_types.param_dtype");
  if (dtype != nullptr && dtype->is_string() && *dtype != "auto" &&
      *dtype != to_string(c.precision())) {
    wrong(
        reading, "data_types.param_dtype", show_json(*dtype),
        str("contradicts fp16.enabled and bf16.enabled, which make it ", to_string(c.precision())),
        "set fp16.enabled or bf16.enabled and leave param_dtype out");
  }
}

void check_zero(const RunShape& shape, ConfigReading& reading) {
  const ZeroConfig& zero = reading.config.zero;
  if (shape.nodes < 1 || shape.ranks % shape.nodes != 0) {
    wrong(reading, "", "",
          str(shape.ranks, " ranks (", shape.ranks_from, ") cannot be spread over ", shape.nodes,
              " equal nodes (", shape.nodes_from, ")"));
    return;
  }
  if (zero.mics_hierarchical) {
    check_hierarchical(shape, reading);
  }
  check_secondary(shape, reading);
  if (zero.mics_shard_size == -1) {
    return;
  }
  const std::string path = "zero_optimization.mics_shard_size";
  const std::string value = str(zero.mics_shard_size);
  if (zero.mics_shard_size < 1) {
    wrong(reading, path, value, "must be 1 or more, or -1 for off");
  } else if (shape.ranks % zero.mics_shard_size != 0) {
    wrong(reading, path, value,
          str("does not divide ", shape.ranks, " ranks (", shape.ranks_from, ")"));
  }
  if (zero.stage != 3) {
    wrong(reading, path, value, str("needs zero_optimization.stage 3, not ", zero.stage));
  }
}

void check_optimizer(const json& config, ConfigReading& reading) {
  OptimizerConfig& optimizer = reading.config.optimizer;
  for (char& c : optimizer.type) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (optimizer.type == "adamw" && !optimizer.adam_w_mode) {
    wrong(reading, "optimizer.params.adam_w_mode", "false",
          "contradicts the type AdamW, whose decay is decoupled", "use the type Adam");
  }
  const json* params = find_path(config, "optimizer.params");
  if (find_path(config, "optimizer.type") == nullptr && params != nullptr && !params->empty()) {
    wrong(reading, "optimizer.params", show_json(*params), "has no optimizer.type beside it",
          "add \"type\": \"AdamW\"");
  }
}

void check_scheduler(const json& config, ConfigReading& reading) {
  SchedulerConfig& schedule = reading.config.scheduler;
  const json* params = find_path(config, "scheduler.params");
  const bool has_params = params != nullptr && params->is_object();
  if (schedule.type.empty()) {
    if (has_params && !params->empty() && find_path(config, "scheduler.type") == nullptr) {
      wrong(reading, "scheduler.params", show_json(*params), "has no scheduler.type beside it");
    }
    return;
  }
  const auto& allowed = schedule_params().at(schedule.type);
  if (has_params) {
    for (const auto& [name, value] : params->items()) {
      const std::string path = "scheduler.params." + name;
      if (find_key(path) != nullptr &&
          std::find(allowed.begin(), allowed.end(), name) == allowed.end() &&
          find_key(path)->fate == KeyFate::kImplemented) {
        wrong(reading, path, show_json(value), str(schedule.type, " has no such parameter"));
      }
    }
  }
  if (schedule.type == "WarmupDecayLR" &&
      find_path(config, "scheduler.params.warmup_max_lr") == nullptr) {
    schedule.warmup_max_lr = 1e-3;
    reading.findings.push_back({Severity::kNote, "scheduler.params.warmup_max_lr", "",
                                "not given: DeepSpeed's 0.001, whatever the optimizer's rate", ""});
  }
  if (schedule.total_num_steps && *schedule.total_num_steps < schedule.warmup_num_steps) {
    reading.findings.push_back(
        {Severity::kWarning, "scheduler.params.total_num_steps", str(*schedule.total_num_steps),
         str("is less than warmup_num_steps = ", schedule.warmup_num_steps), ""});
  }
}

std::vector<std::vector<int64_t>> shard_groups(int64_t ranks, int64_t shard_size) {
  std::vector<std::vector<int64_t>> groups(ranks / shard_size);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    groups[rank / shard_size].push_back(rank);
  }
  return groups;
}

std::vector<std::vector<int64_t>> node_groups(int64_t ranks, int64_t shard_size, int64_t local) {
  std::vector<std::vector<int64_t>> groups;
  for (int64_t first = 0; first < ranks; first += shard_size) {
    for (int64_t place = 0; place < local; ++place) {
      std::vector<int64_t>& group = groups.emplace_back();
      for (int64_t rank = first + place; rank < first + shard_size; rank += local) {
        group.push_back(rank);
      }
    }
  }
  return groups;
}

std::vector<std::vector<int64_t>> replica_groups(int64_t ranks, int64_t shard_size) {
  std::vector<std::vector<int64_t>> groups(shard_size);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    groups[rank % shard_size].push_back(rank);
  }
  return groups;
}

}  // namespace reknit
