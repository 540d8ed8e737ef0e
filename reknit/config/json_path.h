// Values of a JSON object by dotted path ("zero_optimization.stage").
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace reknit {

/// "a.b.c" -> a, b, c.
std::vector<std::string> split_path(std::string_view path);

/// nullptr if there is nothing there.
const nlohmann::json* find_path(const nlohmann::json& root, std::string_view path);

/// Makes the objects on the way. Throws UsageError naming what is in the way if one of
/// them is a value.
void set_path(nlohmann::json& root, std::string_view path, nlohmann::json value);

/// Removes the value if it is there; objects that become empty stay.
void erase_path(nlohmann::json& root, std::string_view path);

/// Equal as settings: numbers by value (5e8 and 500000000), the rest as they are.
bool same_value(const nlohmann::json& a, const nlohmann::json& b);

}  // namespace reknit
