#include "reknit/data/json_parse.h"

#include <nlohmann/json.hpp>

#include "reknit/base/error.h"
#include "reknit/base/json_problem.h"

namespace reknit {

nlohmann::json parse_foreign_json(std::string_view text, const std::string& place) {
  constexpr int kMaxDepth = 256;
  return parse_within(text, kMaxDepth,
                      [&](const std::string& what) { throw InputError(str(place, ": ", what)); });
}

}  // namespace reknit
