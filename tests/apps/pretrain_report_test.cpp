// Megatron's iteration line says what happened since the last one.
#include "apps/pretrain_report.h"

#include <gmock/gmock.h>

#include <limits>

namespace reknit {
namespace {

using testing::HasSubstr;

PretrainRecord record_of(double loss, double grad_norm) {
  PretrainRecord record;
  record.lm.loss = loss;
  record.lm.update.grad_norm = grad_norm;
  return record;
}

TEST(PretrainPrinter, CountsTheStepsWhoseLossOrGradientIsNan) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  PretrainPrinter printer(PretrainFacts{.steps = 10});
  printer.add(record_of(2.0, 1.0));
  printer.add(record_of(2.0, kNan));
  printer.add(record_of(kNan, 1.0));
  printer.add(record_of(2.0, std::numeric_limits<double>::infinity()));
  EXPECT_THAT(printer.lines(1), HasSubstr("number of nan iterations:   2 |"));
  printer.add(record_of(2.0, 1.0));
  EXPECT_THAT(printer.lines(1), HasSubstr("number of nan iterations:   0 |"));
}

}  // namespace
}  // namespace reknit
