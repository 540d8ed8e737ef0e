#include "apps/progress.h"

#include "reknit/base/error.h"

#include <unistd.h>
#include <algorithm>
#include <cmath>

namespace reknit {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kLineSeconds = 30;
constexpr int kBarWidth = 30;

double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole < 60) {
    return str(whole, " s");
  }
  if (whole < 3600) {
    return str(whole / 60, " min ", whole % 60, " s");
  }
  return str(whole / 3600, " h ", whole % 3600 / 60, " min");
}

Progress::Progress(std::string label, int64_t total, std::FILE* out)
    : label_(std::move(label)),
      total_(std::max<int64_t>(total, 1)),
      out_(out),
      terminal_(isatty(fileno(out)) == 1),
      start_(Clock::now()),
      shown_(start_) {}

Progress::~Progress() {
  if (terminal_) {
    std::fputs("\r\033[K", out_);
    std::fflush(out_);
  }
}

std::string Progress::text(int64_t done) const {
  const double elapsed = seconds_between(start_, Clock::now());
  const std::string left = done > 0 ? duration_text(elapsed / static_cast<double>(done) *
                                                    static_cast<double>(total_ - done)) +
                                          " left"
                                    : "";
  return str(done, "/", total_, left.empty() ? "" : ", ", left);
}

void Progress::draw() {
  const auto filled = static_cast<int>(done_ * kBarWidth / total_);
  std::fprintf(out_, "\r\033[K%s [%s%s] %s", label_.c_str(), std::string(filled, '=').c_str(),
               std::string(kBarWidth - filled, ' ').c_str(), text(done_).c_str());
  std::fflush(out_);
}

void Progress::advance(int64_t done) {
  done_ = std::clamp<int64_t>(done, 0, total_);
  const Clock::time_point now = Clock::now();
  if (seconds_between(shown_, now) < (terminal_ ? kRedrawSeconds : kLineSeconds)) {
    return;
  }
  shown_ = now;
  if (terminal_) {
    draw();
  } else {
    line(str(label_, " ", text(done_)));
  }
}

void Progress::line(const std::string& text) {
  std::fprintf(out_, "%s%s\n", terminal_ ? "\r\033[K" : "", text.c_str());
  std::fflush(out_);
  if (terminal_) {
    draw();
  }
}

}  // namespace reknit
