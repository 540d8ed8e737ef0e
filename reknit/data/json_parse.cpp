#include "reknit/data/json_parse.h"

#include <nlohmann/json.hpp>

#include "reknit/base/error.h"
#include "reknit/base/json_problem.h"

namespace reknit {

using nlohmann::json;

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
