#include "apps/env_flags.h"

#include <CLI/CLI.hpp>

namespace reknit {

Action add_env(CLI::App& app, std::function<int(const EnvOptions&)> run) {
  app.footer("\nExample:\n  reknit env        what to put into a bug report\n");
  return [run = std::move(run)] { return run(EnvOptions{}); };
}

}  // namespace reknit
