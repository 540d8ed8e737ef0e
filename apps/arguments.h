// The command line before it is parsed, and how parse errors are said.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace reknit {

/// "-" for "_" in the names of flags ("--max_len=a_b" is "--max-len=a_b"); values and
/// everything after "--" stay.
std::vector<std::string> normalise_flags(std::vector<std::string> args);

/// The error of a failed parse as a UsageError: an unknown flag or command is named
/// together with the nearest one that exists.
[[noreturn]] void throw_parse_error(const CLI::App& app, const CLI::ParseError& error);

/// The nearest of `names` within a small edit distance; empty if there is none.
std::string nearest_name(std::string_view name, const std::vector<std::string>& names);

}  // namespace reknit
