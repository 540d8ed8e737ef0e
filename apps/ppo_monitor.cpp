#include "apps/ppo_monitor.h"

namespace reknit {

PpoMonitor::PpoMonitor(const PpoOptions& options, bool leader) {
  if (!leader) {
    return;
  }
  if (options.tensorboard) {
    run_ = make_tensorboard(options.tensorboard_dir);
  }
  for (const auto& [model, settings] :
       {std::pair{"actor", &options.actor}, {"critic", &options.critic}}) {
    for (auto& monitor : configured_monitors(settings->reading.config)) {
      engines_.push_back({model, std::move(monitor)});
    }
  }
}

void PpoMonitor::write(const nlohmann::ordered_json& line, int64_t global_batch) {
  const auto step = line.at("step").get<int64_t>();
  if (run_) {
    Scalars scalars;
    for (const auto& [key, value] : line.items()) {
      if (value.is_number() && key != "step") {
        scalars.emplace_back(key, value.get<double>());
      }
    }
    for (const std::string model : {"actor", "critic"}) {
      scalars.emplace_back(model + "_loss_sum", line.at(model + "_loss").get<double>());
      for (const auto& [key, value] : line.at(model).items()) {
        scalars.emplace_back(model + "/" + key, value.get<double>());
      }
    }
    run_->write(step, scalars);
  }
  for (const Engine& engine : engines_) {
    const auto& numbers = line.at(engine.model);
    engine.monitor->write(step * global_batch,
                          {{"Train/Samples/lr", numbers.at("lr").get<double>()},
                           {"Train/Samples/loss_scale", numbers.at("loss_scale").get<double>()}});
  }
}

}  // namespace reknit
