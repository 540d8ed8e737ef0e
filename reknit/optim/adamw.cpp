#include "reknit/optim/adamw.h"

#include <ATen/ATen.h>

namespace reknit {

AdamW::AdamW(Store& store, AdamWSettings settings) : settings_(settings) {
  for (const OptimizerShard& shard : store.shards()) {
    states_.push_back({shard.master, at::zeros_like(shard.master), at::zeros_like(shard.master)});
  }
}

void AdamW::update(const std::vector<OptimizerShard>& shards, double lr,
                   const at::Tensor& grad_scale) {
  REKNIT_INVARIANT(shards.size() == states_.size(), "an update of ", shards.size(),
                   " shards by an optimizer of ", states_.size());
  const ops::AdamStep step{.lr = lr,
                           .beta1 = settings_.beta1,
                           .beta2 = settings_.beta2,
                           .eps = settings_.eps,
                           .decoupled = settings_.decoupled,
                           .bias_correction = settings_.bias_correction,
                           .step = ++step_};
  for (size_t i = 0; i < shards.size(); ++i) {
    std::vector<ops::UpdateRange> ranges;
    for (const ShardSlice& slice : shards[i].slices) {
      ranges.push_back({slice.extent.begin, slice.extent.end,
                        slice.param->decay ? settings_.weight_decay : 0.0, 1.0});
    }
    ops::adam_update(states_[i], shards[i].grad, grad_scale, shards[i].weight, step, ranges);
  }
}

int64_t AdamW::bytes() const {
  int64_t bytes = 0;
  for (const ops::AdamState& state : states_) {
    bytes += static_cast<int64_t>(state.exp_avg.nbytes() + state.exp_avg_sq.nbytes());
  }
  return bytes;
}

}  // namespace reknit
