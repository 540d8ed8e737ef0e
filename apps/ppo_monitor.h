// A ppo run's scalars under the tags that DeepSpeed-Chat and DeepSpeed give them.
#pragma once

#include "apps/monitor.h"
#include "apps/options.h"

#include <nlohmann/json.hpp>

#include <memory>
#include <vector>

namespace reknit {

/// Writes to --tensorboard and to what the configs of actor and critic turn on.
class PpoMonitor {
 public:
  /// Opens the files; none unless `leader`. Errors as in apps/monitor.h.
  PpoMonitor(const PpoOptions& options, bool leader);

  /// `line` is that of metrics.jsonl. --tensorboard gets every number of it by its key
  /// (those of the models as actor/lr), and actor_loss_sum and critic_loss_sum as
  /// DeepSpeed-Chat has them, over steps. A config's files get Train/Samples/lr and
  /// Train/Samples/loss_scale of their model, over samples.
  void write(const nlohmann::ordered_json& line, int64_t global_batch);

 private:
  struct Engine {
    std::string model;  ///< "actor"
    std::unique_ptr<Monitor> monitor;
  };

  std::unique_ptr<Monitor> run_;
  std::vector<Engine> engines_;
};

}  // namespace reknit
