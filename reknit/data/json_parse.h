// JSON of unknown origin.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace reknit {

/// The value that `text` states. Throws InputError at `place` if it is no JSON or nested so deep
/// that copying or printing it could end the process.
nlohmann::json parse_foreign_json(std::string_view text, const std::string& place);

}  // namespace reknit
