// What pretraining reports: a line of metrics a step, and Megatron's iteration line.
#pragma once

#include "reknit/engine/pretrain.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace reknit {

/// What every step of a run has in common.
struct PretrainFacts {
  int64_t steps = 0;
  int64_t seq_length = 0;
  int64_t ranks = 1;
  double sequence_flops = 0;  ///< of a training step on one sequence
  int64_t peak_bytes = 0;
  bool timed = false;
};

nlohmann::ordered_json metrics_of(const PretrainRecord& record, const PretrainFacts& facts,
                                  int64_t skipped, std::optional<double> validation_loss);

std::string validation_line(const std::string& where, double loss);

/// Means over the steps since the last line.
class PretrainPrinter {
 public:
  explicit PretrainPrinter(PretrainFacts facts) : facts_(facts) {}

  void add(const PretrainRecord& record);
  /// Megatron's iteration line, and the times of the parts where they are measured.
  std::string lines(int64_t skipped);

 private:
  PretrainFacts facts_;
  PretrainRecord last_;
  LmTimes times_;
  double seconds_ = 0;
  double loss_ = 0;
  int64_t steps_ = 0;
  int64_t nan_steps_ = 0;  ///< whose loss or gradient was NaN
  int64_t sequences_ = 0;
};

}  // namespace reknit
