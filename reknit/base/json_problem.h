// What a JSON library says is wrong, in words for a reader.
#pragma once

#include <exception>
#include <string>

namespace reknit {

/// What nlohmann::json's `error` says, without its own tags ("[json.exception.KIND] ").
std::string json_problem(const std::exception& error);

}  // namespace reknit
