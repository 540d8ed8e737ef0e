// An exponential moving average of a model's weights.
#pragma once

#include "reknit/checkpoint/hf_folder.h"
#include "reknit/engine/model.h"

#include <string>
#include <vector>

namespace reknit {

/// average = beta average + (1 - beta) master, in fp32, beginning with the masters as they
/// are. Each rank averages its own optimizer shards, so nothing is communicated until the
/// export. The store must be sealed and loaded, and outlive it.
class WeightAverage {
 public:
  /// UsageError unless 0 <= beta < 1.
  WeightAverage(Store& store, double beta);

  /// Takes the present masters in. Local; between passes.
  void update();

  /// Writes `model` (of the same store) with the averages in place of its weights; see
  /// export_model. The weights are bit for bit what they were afterwards. If it throws,
  /// they are not: the run has to end.
  void write_model(Model& model, const HfFolder& source, at::ScalarType dtype,
                   const std::string& path, IfPresent if_present);

  /// One flat fp32 tensor per optimizer shard, in the order of Store::shards(), for
  /// checkpoints.
  std::vector<at::Tensor>& shards() { return averages_; }

 private:
  Store& store_;
  double beta_;
  std::vector<at::Tensor> averages_;
};

}  // namespace reknit
