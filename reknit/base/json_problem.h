// What a JSON library says is wrong, in words for a reader.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <exception>
#include <functional>
#include <string>
#include <string_view>

namespace reknit {

/// What nlohmann::json's `error` says, without its own tags ("[json.exception.KIND] ").
std::string json_problem(const std::exception& error);

/// `text` as JSON that is nested at most `max_depth` deep, so that copying or printing it ends no
/// process. `fail`, which has to throw, hears what is wrong: "is no JSON: ...".
nlohmann::json parse_within(std::string_view text, int max_depth,
                            const std::function<void(const std::string&)>& fail);

}  // namespace reknit
