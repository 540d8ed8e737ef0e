// Numbers in the layout that a line of text wants.
#pragma once

#include <cstdio>
#include <string>

namespace reknit {

/// What printf would print, cut at 511 characters.
template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[512];
  std::snprintf(text, sizeof(text), pattern, args...);
  return text;
}

}  // namespace reknit
