#include "reknit/optim/optimizer.h"

#include "reknit/optim/flat_states.h"

#include <ATen/ATen.h>

namespace reknit {
namespace {

using Ranges = std::vector<ops::UpdateRange>;

// What differs between the optimizers that go over a shard once: name, states, first value
// of the states, and one step.

struct Adam {
  AdamSettings settings;
  static constexpr const char* kName = "adam";
  std::vector<std::string> states() const { return {"exp_avg", "exp_avg_sq"}; }
  double initial() const { return 0.0; }
  void step(const ops::FlatShard& shard, const at::Tensor& scale, int64_t number,
            const UpdateRates& rates, const Ranges& ranges) const {
    const ops::AdamStep step{rates.beta1.value_or(settings.beta1),
                             rates.beta2.value_or(settings.beta2),
                             settings.eps,
                             settings.decoupled,
                             settings.bias_correction,
                             number};
    ops::adam_update(shard, scale, step, ranges);
  }
};

struct Adagrad {
  AdagradSettings settings;
  static constexpr const char* kName = "adagrad";
  std::vector<std::string> states() const { return {"sum"}; }
  double initial() const { return settings.initial_accumulator; }
  void step(const ops::FlatShard& shard, const at::Tensor& scale, int64_t number,
            const UpdateRates&, const Ranges& ranges) const {
    ops::adagrad_update(shard, scale, {settings.eps, settings.lr_decay, number}, ranges);
  }
};

struct Lion {
  LionSettings settings;
  static constexpr const char* kName = "lion";
  std::vector<std::string> states() const { return {"exp_avg"}; }
  double initial() const { return 0.0; }
  void step(const ops::FlatShard& shard, const at::Tensor& scale, int64_t, const UpdateRates& rates,
            const Ranges& ranges) const {
    ops::lion_update(shard, scale,
                     {rates.beta1.value_or(settings.beta1), rates.beta2.value_or(settings.beta2)},
                     ranges);
  }
};

struct Sgd {
  SgdSettings settings;
  static constexpr const char* kName = "sgd";
  std::vector<std::string> states() const {
    return settings.momentum == 0 ? std::vector<std::string>{}
                                  : std::vector<std::string>{"momentum_buffer"};
  }
  double initial() const { return 0.0; }
  void step(const ops::FlatShard& shard, const at::Tensor& scale, int64_t number,
            const UpdateRates&, const Ranges& ranges) const {
    ops::sgd_update(shard, scale,
                    {settings.momentum, settings.dampening, settings.nesterov, number}, ranges);
  }
};

template <class Kind>
class OnePass final : public FlatStates {
 public:
  OnePass(Store& store, const OptimizerSettings& settings, double lr, Kind kind)
      : FlatStates(Kind::kName, store, settings, lr, kind.settings.weight_decay, kind.states(),
                   kind.initial()),
        kind_(kind) {}

 private:
  void apply(const std::vector<OptimizerShard>& shards, const UpdateRates& rates,
             const at::Tensor& grad_scale) override {
    for (size_t i = 0; i < shards.size(); ++i) {
      Ranges ranges;
      for (const ShardSlice& slice : shards[i].slices) {
        ranges.push_back(range_of(slice, rates));
      }
      kind_.step(flat(shards, i), grad_scale, step(), rates, ranges);
    }
  }

  Kind kind_;
};

struct Maker {
  Store& store;
  const OptimizerSettings& settings;
  double lr;

  template <class Kind>
  std::unique_ptr<Optimizer> one_pass(Kind kind) const {
    return std::make_unique<OnePass<Kind>>(store, settings, lr, kind);
  }
  auto operator()(const AdamSettings& s) const { return one_pass(Adam{s}); }
  auto operator()(const AdagradSettings& s) const { return one_pass(Adagrad{s}); }
  auto operator()(const LionSettings& s) const { return one_pass(Lion{s}); }
  auto operator()(const SgdSettings& s) const { return one_pass(Sgd{s}); }
  auto operator()(const LambSettings&) const { return make_lamb(store, settings, lr); }
  auto operator()(const MuonSettings&) const { return make_muon(store, settings, lr); }
};

struct CommonStates {
  template <class Kind>
  int count(const Kind& kind) const {
    return static_cast<int>(kind.states().size());
  }
  int operator()(const AdamSettings& s) const { return count(Adam{s}); }
  int operator()(const AdagradSettings& s) const { return count(Adagrad{s}); }
  int operator()(const LionSettings& s) const { return count(Lion{s}); }
  int operator()(const SgdSettings& s) const { return count(Sgd{s}); }
  int operator()(const LambSettings&) const { return 2; }
  int operator()(const MuonSettings&) const { return 1; }
};

}  // namespace

int common_states(const OptimizerSettings& settings) {
  return std::visit(CommonStates{}, settings.kind);
}

int states_of(const OptimizerSettings& settings, const ParamSpec& param) {
  const bool adam_of_muon = std::holds_alternative<MuonSettings>(settings.kind) && !is_muon(param);
  return common_states(settings) + (adam_of_muon ? 1 : 0);
}

std::unique_ptr<Optimizer> Optimizer::create(Store& store, const OptimizerSettings& settings,
                                             double lr) {
  return std::visit(Maker{store, settings, lr}, settings.kind);
}

Optimizer::Optimizer(std::string name, const OptimizerSettings& settings, double lr,
                     double weight_decay)
    : name_(std::move(name)),
      base_rates_{lr},
      weight_decay_(weight_decay),
      decay_all_(settings.decay_all) {
  for (const ParamRate& rate : settings.rates) {
    named_rates_.emplace_back(rate.contains, add_rate(rate.lr));
  }
}

size_t Optimizer::add_rate(double lr) {
  base_rates_.push_back(lr);
  return base_rates_.size() - 1;
}

void Optimizer::update(const std::vector<OptimizerShard>& shards, const UpdateRates& rates,
                       const at::Tensor& grad_scale) {
  REKNIT_INVARIANT(rates.lr.size() == base_rates_.size(), "an update with ", rates.lr.size(),
                   " rates by an optimizer of ", base_rates_.size());
  ++step_;
  apply(shards, rates, grad_scale);
}

ops::UpdateRange Optimizer::range_of(const ShardSlice& slice, const UpdateRates& rates) const {
  const ParamSpec& param = *slice.param;
  size_t rate = own_rate(param);
  const double decay = param.decay || decay_all_ ? rates.weight_decay.value_or(weight_decay_) : 0.0;
  for (const auto& [part, own] : named_rates_) {
    if (param.name.find(part) != std::string::npos) {
      rate = own;
      break;
    }
  }
  return {slice.extent.begin, slice.extent.end, decay, rates.lr[rate]};
}

}  // namespace reknit
