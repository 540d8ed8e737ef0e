// AdamW over a store's optimizer shards.
#pragma once

#include "reknit/kernels/update.h"
#include "reknit/store/store.h"

#include <vector>

namespace reknit {

struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;  ///< applied where ParamSpec::decay says so
  bool decoupled = true;
  bool bias_correction = true;
};

/// Owns the moments (fp32, as long as the shards, zero at first). The store must be
/// sealed and outlive it.
class AdamW {
 public:
  AdamW(Store& store, AdamWSettings settings);

  /// One update of every shard of begin_update; see ops::adam_update.
  void update(const std::vector<OptimizerShard>& shards, double lr, const at::Tensor& grad_scale);

  /// Updates applied so far (Adam's step counter).
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }
  /// Master and moments of shard i, for checkpoints.
  ops::AdamState& state(size_t shard) { return states_.at(shard); }
  size_t num_shards() const { return states_.size(); }
  /// Of the moments.
  int64_t bytes() const;

 private:
  AdamWSettings settings_;
  std::vector<ops::AdamState> states_;
  int64_t step_ = 0;
};

}  // namespace reknit
