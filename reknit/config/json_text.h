// JSON as people write it: with comments and trailing commas, and with errors that
// say where.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace reknit {

/// Parses `text`; `name` (a path or a flag) heads every error. Allowed beyond JSON:
/// // and /* */ comments, a comma after the last element. A syntax error throws
/// UsageError with name, line and column (both from 1; a column counts bytes); a key
/// that occurs twice in one object throws one that gives the key's full path.
nlohmann::json parse_json_text(std::string_view text, const std::string& name);

/// Reads and parses a file; a file that cannot be read throws InputError.
nlohmann::json read_json_file(const std::string& path);

/// The value as one line of JSON, cut to about 80 characters: for messages.
std::string show_json(const nlohmann::json& value);

}  // namespace reknit
