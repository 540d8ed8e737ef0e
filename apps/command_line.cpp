#include "apps/command_line.h"

#include "apps/arguments.h"
#include "apps/foreign_flags.h"
#include "reknit/base/log.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>

namespace reknit {
namespace {

const char* kFooter =
    "\nreknit COMMAND --help explains a command. `_` and `-` are the same in every flag.\n"
    "Exit codes: 0 done, 2 command line or config, 3 input files, 4 a rank or device failed,\n"
    "5 the numbers failed, 130 stopped by a second Ctrl-C, 1 a bug of ours.";

std::vector<std::string> prepare(const std::vector<Command>& commands,
                                 const std::vector<std::string>& given) {
  std::vector<std::string> args = normalise_flags(given);
  if (!args.empty() && args.front() == "help") {
    std::rotate(args.begin(), args.begin() + 1, args.end());
    args.back() = "--help";
  }
  const auto chosen = std::find_if(commands.begin(), commands.end(), [&](const Command& command) {
    return !args.empty() && command.name == args.front();
  });
  if (chosen == commands.end() || chosen->foreign == nullptr) {
    return args;
  }
  std::vector<std::string> notes;
  args = translate_flags(*chosen->foreign, args, notes);
  for (const std::string& note : notes) {
    log_info(note);
  }
  return args;
}

}  // namespace

int run_command_line(const std::vector<Command>& commands, const std::vector<std::string>& given) {
  CLI::App app("Reknit trains and generates with the same sharded weights.", "reknit");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", "reknit " REKNIT_VERSION);
  app.get_formatter()->column_width(36);
  int code = 0;
  for (const Command& command : commands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    const Action action = command.add(*sub);
    sub->callback([action, &code] { code = action(); });
  }
  std::vector<std::string> args = prepare(commands, given);
  if (args.empty()) {
    args = {"--help"};
  }
  std::reverse(args.begin(), args.end());  // CLI11 takes the last one first
  try {
    app.parse(args);
  } catch (const CLI::Success& asked) {
    return app.exit(asked, std::cout, std::cout);
  } catch (const CLI::ParseError& error) {
    throw_parse_error(app, error);
  }
  return code;
}

}  // namespace reknit
