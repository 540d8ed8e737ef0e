// What to pass on of errors that others throw.
#pragma once

#include <exception>
#include <string>

namespace reknit {

/// What `error` says, without the stack of frames that libtorch adds.
std::string first_line(const std::exception& error);

}  // namespace reknit
