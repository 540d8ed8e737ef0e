#include "apps/arguments.h"

#include "reknit/base/error.h"
#include "reknit/config/deepspeed_keys.h"

#include <CLI/CLI.hpp>

#include <algorithm>

namespace reknit {
namespace {

const CLI::App& innermost(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : innermost(*parsed.front());
}

// "reknit data build".
std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : full_name(*parent) + " " + app.get_name();
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    names.push_back(command->get_name());
  }
  return names;
}

}  // namespace

std::vector<std::string> normalise_flags(std::vector<std::string> args) {
  for (std::string& arg : args) {
    if (arg == "--") {
      break;
    }
    if (arg.starts_with("--")) {
      std::replace(arg.begin(), arg.begin() + std::min(arg.find('='), arg.size()), '_', '-');
    }
  }
  return args;
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& names) {
  std::string nearest;
  size_t best = std::max<size_t>(2, name.size() / 4) + 1;
  for (const std::string& candidate : names) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

void throw_parse_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  const std::string see = full_name(command) + " --help";
  const std::vector<std::string> left = command.remaining(true);
  if (!left.empty()) {
    const std::string name = left.front().substr(0, left.front().find('='));
    const bool flag = name.starts_with("-");
    const std::vector<std::string> commands = command_names(command);
    const std::string near = nearest_name(name, flag ? flag_names(command) : commands);
    throw UsageError(str(flag                ? "there is no flag "
                         : !commands.empty() ? "there is no command "
                                             : "there is nothing to do with ",
                         name),
                     !near.empty() ? str("did you mean ", near, "?")
                     : flag || !commands.empty()
                         ? see + " lists what there is"
                         : "a value follows its flag, as in --model DIR; " + see + " lists them");
  }
  const std::string what = error.what();
  if (const size_t twice = what.find(": At Most 1 required but received "); twice != what.npos) {
    throw UsageError(what.substr(0, twice) + " is given more than once", "give it once");
  }
  throw UsageError(what, see + " lists what there is");
}

}  // namespace reknit
