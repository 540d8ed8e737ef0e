// JSON as the model files of others use it, read strictly.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace reknit {

/// Parses `text`. Throws InputError naming `where` and the place if it is not
/// JSON, if an object names a key twice, or if it is nested deeper than 64.
nlohmann::json parse_json(std::string_view text, const std::string& where);
/// The same with the keys in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where);

/// As above, for a whole file that must hold an object.
nlohmann::json read_json_object(const std::string& path);

/// A value as it stands in a message: its text, cut at 80 characters.
std::string json_excerpt(const nlohmann::json& value);

}  // namespace reknit
