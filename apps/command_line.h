// The reknit command as a function of its arguments.
#pragma once

#include "apps/foreign_flags.h"
#include "apps/shared_flags.h"

#include <functional>
#include <string>
#include <vector>

namespace reknit {

struct Command {
  std::string name;
  std::string summary;
  std::function<Action(CLI::App&)> add;
  const ForeignFlags* foreign = nullptr;  ///< another program's flags, translated first
};

/// Parses `args` (without the program's name) and runs the command they name. --help and
/// --version print to standard output. Returns the exit code; throws what is wrong.
int run_command_line(const std::vector<Command>& commands, const std::vector<std::string>& args);

}  // namespace reknit
