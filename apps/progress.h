// How far a command is: a bar with the time left on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace reknit {

/// "42 s", "3 min 5 s", "2 h 10 min".
std::string duration_text(double seconds);

/// One task of a known size. On a terminal a bar stays in the last line; elsewhere there
/// are no control characters, every line is flushed, and advance() prints a line at
/// most twice a minute. One thread uses it.
class Progress {
 public:
  Progress(std::string label, int64_t total, std::FILE* out = stdout);
  /// Takes the bar away.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` of `total` are done.
  void advance(int64_t done);
  /// Prints a whole line, above the bar if there is one.
  void line(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  std::string text(int64_t done) const;
  void draw();

  std::string label_;
  int64_t total_;
  std::FILE* out_;
  bool terminal_;
  int64_t done_ = 0;
  Clock::time_point start_;
  Clock::time_point shown_;
};

}  // namespace reknit
