// A PPO step as people and programs read it.
#pragma once

#include "reknit/rlhf/ppo.h"

#include <nlohmann/json.hpp>

#include <string>

namespace reknit {

/// A line of metrics.jsonl.
nlohmann::ordered_json metrics_of(const PpoRecord& record, int64_t global_batch);

/// An answer of samples.jsonl; the texts may be empty.
nlohmann::ordered_json sample_of(const Experience& experience, int64_t step,
                                 const std::string& prompt, const std::string& answer);

/// Keeps the averages that the printed lines show.
class PpoPrinter {
 public:
  /// The latency line, the losses, and the rewards of a step: three lines.
  std::string lines(const PpoRecord& record, int64_t global_batch);

 private:
  double seconds_ = 0.0;
  int64_t samples_ = 0;
};

}  // namespace reknit
