// The states of an optimizer that keeps the same ones for every parameter.
#pragma once

#include "reknit/optim/optimizer.h"

#include <string>
#include <vector>

namespace reknit {

/// Flat fp32 tensors beside the shards, one for each name.
class FlatStates : public Optimizer {
 public:
  std::vector<std::string> state_names(const ParamSpec&) const override { return names_; }
  at::Tensor state(size_t shard, size_t slice, const std::string& name) const override;
  int64_t bytes() const override;

 protected:
  FlatStates(std::string name, Store& store, const OptimizerSettings& settings, double lr,
             double weight_decay, std::vector<std::string> state_names, double initial = 0.0);

  ops::FlatShard flat(const std::vector<OptimizerShard>& shards, size_t shard) const;

 private:
  struct Held {
    std::array<at::Tensor, 2> states;
    std::vector<Extent> slices;
  };
  std::vector<std::string> names_;
  std::vector<Held> held_;
};

/// The makers of those with a source of their own.
std::unique_ptr<Optimizer> make_lamb(Store& store, const OptimizerSettings& settings, double lr);
std::unique_ptr<Optimizer> make_muon(Store& store, const OptimizerSettings& settings, double lr);

/// Muon's own parameters: the matrices that are neither embedding nor output table.
bool is_muon(const ParamSpec& param);

}  // namespace reknit
