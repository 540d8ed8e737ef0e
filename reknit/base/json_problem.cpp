#include "reknit/base/json_problem.h"

namespace reknit {

std::string json_problem(const std::exception& error) {
  const std::string what = error.what();
  const size_t start = what.find("] ");
  const bool tagged = what.starts_with("[json.exception.") && start != std::string::npos;
  return tagged ? what.substr(start + 2) : what;
}

}  // namespace reknit
