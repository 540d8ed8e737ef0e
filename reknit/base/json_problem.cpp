#include "reknit/base/json_problem.h"

#include "reknit/base/error.h"

#include <nlohmann/json.hpp>

namespace reknit {

std::string json_problem(const std::exception& error) {
  const std::string what = error.what();
  const size_t start = what.find("] ");
  const bool tagged = what.starts_with("[json.exception.") && start != std::string::npos;
  return tagged ? what.substr(start + 2) : what;
}

nlohmann::json parse_within(std::string_view text, int max_depth,
                            const std::function<void(const std::string&)>& fail) {
  using nlohmann::json;
  const auto limit_depth = [&](int depth, json::parse_event_t, const json&) {
    if (depth > max_depth) {
      fail(str("is nested deeper than ", max_depth));
    }
    return true;
  };
  try {
    return json::parse(text, limit_depth);
  } catch (const json::exception& error) {
    fail("is no JSON: " + json_problem(error));
    throw;
  }
}

}  // namespace reknit
