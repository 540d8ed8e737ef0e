#include "reknit/optim/flat_states.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace reknit {

FlatStates::FlatStates(std::string name, Store& store, const OptimizerSettings& settings, double lr,
                       double weight_decay, std::vector<std::string> state_names, double initial)
    : Optimizer(std::move(name), settings, lr, weight_decay), names_(std::move(state_names)) {
  for (const OptimizerShard& shard : store.shards()) {
    Held held;
    for (size_t i = 0; i < names_.size(); ++i) {
      held.states[i] = at::full_like(shard.master, initial);
    }
    for (const ShardSlice& slice : shard.slices) {
      held.slices.push_back(slice.extent);
    }
    held_.push_back(std::move(held));
  }
}

at::Tensor FlatStates::state(size_t shard, size_t slice, const std::string& name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  REKNIT_INVARIANT(found != names_.end(), "the optimizer ", this->name(), " has no state ", name);
  const Held& held = held_.at(shard);
  const Extent extent = held.slices.at(slice);
  return held.states[found - names_.begin()].narrow(0, extent.begin, extent.size());
}

int64_t FlatStates::bytes() const {
  int64_t bytes = 0;
  for (const Held& held : held_) {
    for (const at::Tensor& state : held.states) {
      bytes += state.defined() ? static_cast<int64_t>(state.nbytes()) : 0;
    }
  }
  return bytes;
}

ops::FlatShard FlatStates::flat(const std::vector<OptimizerShard>& shards, size_t shard) const {
  REKNIT_INVARIANT(shards.size() == held_.size(), "an update of ", shards.size(),
                   " shards by an optimizer of ", held_.size());
  return {shards[shard].master, shards[shard].grad, shards[shard].weight, held_[shard].states};
}

}  // namespace reknit
