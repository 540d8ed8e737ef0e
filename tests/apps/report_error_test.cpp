// Which exit code an error of libtorch has.
#include "apps/report_error.h"

#include "reknit/base/write_error.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reknit {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr c10::SourceLocation kHere{"f", "file", 1};

struct Report {
  int code;
  std::string text;
};

Report report(const std::exception& error) {
  testing::internal::CaptureStderr();
  const int code = report_error(error);
  return {code, testing::internal::GetCapturedStderr()};
}

TEST(ReportError, MemoryAndDevicesThatFailAreNoBugs) {
  const Report memory = report(c10::OutOfMemoryError(kHere, "CUDA out of memory."));
  EXPECT_EQ(memory.code, 4);
  EXPECT_THAT(memory.text, HasSubstr("error: CUDA out of memory.\nhelp: use a smaller model"));
  const Report device = report(c10::AcceleratorError(kHere, 719, "CUDA error: launch failure"));
  EXPECT_EQ(device.code, 4);
  EXPECT_THAT(device.text, HasSubstr("help: look at the device"));
  EXPECT_EQ(report(WriteError("cannot write a")).code, 4);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they end the test instead
TEST(ReportError, AHostWithoutMemoryIsNoBug) {
  try {
    at::empty({int64_t{1} << 58}, at::kByte);
    FAIL() << "the host gave all memory there can be";
  } catch (const c10::Error& error) {
    const Report memory = report(error);
    EXPECT_EQ(memory.code, 4) << error.what_without_backtrace();
    EXPECT_THAT(memory.text, HasSubstr("error: out of memory: the host refused an allocation of "
                                       "288230376151711744 bytes\n"));
  }
}
#endif

TEST(ReportError, WhatElseLibtorchRefusesIsABug) {
  const Report bug = report(c10::IndexError(kHere, "index out of range"));
  EXPECT_EQ(bug.code, 1);
  EXPECT_THAT(bug.text, HasSubstr("help: this is a bug of ours"));
  EXPECT_THAT(bug.text, Not(HasSubstr("memory")));
}

}  // namespace
}  // namespace reknit
