// Muon: orthogonal steps for matrices, AdamW for the rest.
#include "reknit/optim/flat_states.h"
#include "reknit/optim/matrix_exchange.h"
#include "reknit/optim/newton_schulz.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace reknit {
namespace {

constexpr const char* kMomentum = "momentum_buffer";
constexpr const char* kExpAvg = "exp_avg";
constexpr const char* kExpAvgSq = "exp_avg_sq";

/// How much longer than orthogonal the step of a matrix is.
double length_of(const ParamSpec& param, const MuonSettings& settings) {
  const auto rows = static_cast<double>(param.shape[0]);
  const auto columns = static_cast<double>(param.shape[1]);
  return settings.match_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                              : std::sqrt(std::max(1.0, rows / columns));
}

/// Matrices have one state, the others two: the second ones lie packed.
class Muon final : public Optimizer {
 public:
  Muon(Store& store, const OptimizerSettings& settings, double lr, const MuonSettings& own)
      : Optimizer("muon", settings, own.adam_lr.value_or(lr), own.weight_decay),
        settings_(own),
        muon_rate_(add_rate(own.muon_lr.value_or(lr))),
        exchange_(store, is_muon, own.exchange_numel) {
    for (const OptimizerShard& shard : store.shards()) {
      Held held{at::zeros_like(shard.master), {}, {}};
      int64_t packed = 0;
      for (const ShardSlice& slice : shard.slices) {
        held.slices.push_back(slice);
        held.second_at.push_back(packed);
        packed += is_muon(*slice.param) ? 0 : slice.extent.size();
      }
      held.second = at::zeros({packed}, shard.master.options());
      held_.push_back(std::move(held));
    }
  }

  std::vector<std::string> state_names(const ParamSpec& param) const override {
    return is_muon(param) ? std::vector<std::string>{kMomentum}
                          : std::vector<std::string>{kExpAvg, kExpAvgSq};
  }
  at::Tensor state(size_t shard, size_t slice, const std::string& name) const override {
    const Held& held = held_.at(shard);
    const Extent extent = held.slices.at(slice).extent;
    return name == kExpAvgSq ? held.second.narrow(0, held.second_at[slice], extent.size())
                             : held.first.narrow(0, extent.begin, extent.size());
  }
  int64_t bytes() const override {
    int64_t bytes = 0;
    for (const Held& held : held_) {
      bytes += static_cast<int64_t>(held.first.nbytes() + held.second.nbytes());
    }
    return bytes;
  }

 private:
  struct Held {
    at::Tensor first;   ///< as long as the shard
    at::Tensor second;  ///< of the slices that are no matrices, one after the other
    std::vector<ShardSlice> slices;
    std::vector<int64_t> second_at = {};
  };

  size_t own_rate(const ParamSpec& param) const override { return is_muon(param) ? muon_rate_ : 0; }

  void apply(const std::vector<OptimizerShard>& shards, const UpdateRates& rates,
             const at::Tensor& grad_scale) override {
    std::vector<std::vector<ops::UpdateRange>> matrices(shards.size());
    std::vector<at::Tensor> directions;
    for (size_t i = 0; i < shards.size(); ++i) {
      for (size_t j = 0; j < shards[i].slices.size(); ++j) {
        const ShardSlice& slice = shards[i].slices[j];
        if (is_muon(*slice.param)) {
          matrices[i].push_back(range_of(slice, rates));
        } else {
          adam(shards[i], i, j, rates, grad_scale);
        }
      }
      ops::muon_direction(flat(shards[i], i), grad_scale, {settings_.momentum, settings_.nesterov},
                          matrices[i]);
      directions.push_back(shards[i].grad);
    }
    exchange_.transform(directions, [&](const at::Tensor& matrix) {
      return newton_schulz(matrix, settings_.ns_steps);
    });
    const at::Tensor one = at::ones_like(grad_scale);
    for (size_t i = 0; i < shards.size(); ++i) {
      step_along(shards[i], i, matrices[i], one);
    }
  }

  // The direction is orthogonal now; the decay goes by the rate alone.
  void step_along(const OptimizerShard& shard, size_t i, std::vector<ops::UpdateRange> ranges,
                  const at::Tensor& one) {
    size_t range = 0;
    for (const ShardSlice& slice : shard.slices) {
      if (is_muon(*slice.param)) {
        const double length = length_of(*slice.param, settings_);
        ranges[range].lr *= length;
        ranges[range].weight_decay /= length;
        ++range;
      }
    }
    ops::apply_direction(flat(shard, i), one, ranges);
  }

  void adam(const OptimizerShard& shard, size_t i, size_t j, const UpdateRates& rates,
            const at::Tensor& grad_scale) {
    const Extent extent = shard.slices[j].extent;
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, extent.begin, extent.size()); };
    ops::UpdateRange range = range_of(shard.slices[j], rates);
    range.begin = 0;
    range.end = extent.size();
    ops::adam_update(
        {part(shard.master),
         part(shard.grad),
         part(shard.weight),
         {state(i, j, kExpAvg), state(i, j, kExpAvgSq)}},
        grad_scale,
        {.beta1 = settings_.beta1, .beta2 = settings_.beta2, .eps = settings_.eps, .step = step()},
        {range});
  }

  ops::FlatShard flat(const OptimizerShard& shard, size_t i) const {
    return {shard.master, shard.grad, shard.weight, {held_.at(i).first, {}}};
  }

  MuonSettings settings_;
  size_t muon_rate_;
  MatrixExchange exchange_;
  std::vector<Held> held_;
};

}  // namespace

bool is_muon(const ParamSpec& param) {
  const auto holds = [&](const char* part) { return param.name.find(part) != std::string::npos; };
  return param.shape.size() == 2 && !holds("embed") && !holds("lm_head") && !holds("head.table");
}

std::unique_ptr<Optimizer> make_muon(Store& store, const OptimizerSettings& settings, double lr) {
  return std::make_unique<Muon>(store, settings, lr, std::get<MuonSettings>(settings.kind));
}

}  // namespace reknit
