#include "reknit/base/error_text.h"

namespace reknit {

std::string first_line(const std::exception& error) {
  const std::string what = error.what();
  return what.substr(0, what.find('\n'));
}

}  // namespace reknit
