// Progress and signals: what goes to a file, and what a signal does.
#include "apps/progress.h"
#include "apps/signals.h"

#include <gmock/gmock.h>

#include <csignal>

namespace reknit {
namespace {

TEST(Progress, DurationsAreReadable) {
  EXPECT_EQ(duration_text(0.2), "0 s");
  EXPECT_EQ(duration_text(59.4), "59 s");
  EXPECT_EQ(duration_text(185), "3 min 5 s");
  EXPECT_EQ(duration_text(7800), "2 h 10 min");
}

TEST(Progress, AFileGetsWholeLinesAndNoControlCharacters) {
  std::FILE* file = std::tmpfile();
  {
    Progress progress("steps", 10, file);
    progress.advance(3);
    progress.line("step 3");
  }
  std::rewind(file);
  char text[100] = {};
  const size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  EXPECT_EQ(std::string(text, size), "step 3\n");
}

TEST(Signals, TheFirstSignalIsAFlag) {
  install_stop_signals();
  EXPECT_FALSE(stop_requested());
  EXPECT_STREQ(stop_reason(), "");
  std::raise(SIGUSR1);
  std::raise(SIGTERM);
  EXPECT_TRUE(stop_requested());
  EXPECT_STREQ(stop_reason(), "SIGUSR1");
}

TEST(SignalsDeathTest, ASecondCtrlCStopsAtOnceWith130) {
  EXPECT_EXIT(
      {
        install_stop_signals();
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      testing::ExitedWithCode(130), "");
}

}  // namespace
}  // namespace reknit
