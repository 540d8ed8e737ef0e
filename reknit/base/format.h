// Numbers and their nouns in the layout that a line of text wants.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace reknit {

/// What printf would print, cut at 511 characters.
template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[512];
  std::snprintf(text, sizeof(text), pattern, args...);
  return text;
}

/// "1 rank", "2 ranks".
inline std::string plural(int64_t count, const std::string& thing) {
  return std::to_string(count) + " " + thing + (count == 1 ? "" : "s");
}

/// "a, b, c".
inline std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

}  // namespace reknit
