#include "apps/check_flags.h"
#include "apps/validators.h"

#include <memory>

namespace reknit {

Action add_check(CLI::App& app, std::function<int(const CheckOptions&)> run) {
  auto o = std::make_shared<CheckOptions>();
  app.add_option("--config", o->config_file, "The DeepSpeed JSON config to judge")
      ->type_name("FILE");
  app.add_option("--set", o->sets, "Overrides one key of it: zero_optimization.stage=3")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--batch", o->batch, "Sequences of a micro-batch, as a run's --batch")
      ->check(at_least(1))
      ->type_name("B");
  app.add_option("--ranks", o->ranks, "Ranks it is meant for")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--nodes", o->nodes, "Equal nodes they are spread over")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str();
  app.footer(
      "\nExamples:\n"
      "  reknit check --config ds_config.json --ranks 192 --nodes 24\n"
      "  reknit check --config ds_config.json --set zero_optimization.mics_shard_size=8\n"
      "  reknit check --config no_batch.json --batch 4\n"
      "\nExit code 0: the config works for these ranks; 2: it does not, and all reasons are "
      "listed.");
  return [o, run = std::move(run)] {
    if (o->config_file.empty() && o->sets.empty()) {
      throw UsageError("there is nothing to check", "pass --config FILE");
    }
    if (!o->config_file.empty()) {
      require_file("--config", o->config_file);
    }
    return run(*o);
  };
}

}  // namespace reknit
