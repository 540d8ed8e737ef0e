#include "reknit/data/json_parse.h"

#include <nlohmann/json.hpp>

#include "reknit/base/error.h"

namespace reknit {

using nlohmann::json;

std::string json_problem(const std::exception& error) {
  const std::string message = error.what();  // "[json.exception.KIND] ..."
  const size_t start = message.find("] ");
  return start == std::string::npos ? message : message.substr(start + 2);
}

json parse_foreign_json(std::string_view text, const std::string& place) {
  constexpr int kMaxDepth = 256;
  const auto limit_depth = [&](int depth, json::parse_event_t, const json&) {
    require<InputError>(depth <= kMaxDepth, place, ": is nested deeper than ", kMaxDepth);
    return true;
  };
  try {
    return json::parse(text, limit_depth);
  } catch (const json::exception& error) {
    throw InputError(str(place, ": is no JSON: ", json_problem(error)));
  }
}

}  // namespace reknit
