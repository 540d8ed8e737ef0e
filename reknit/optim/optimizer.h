// Optimizers over a store's shards: one interface, chosen by settings.
#pragma once

#include "reknit/kernels/update.h"
#include "reknit/store/store.h"

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace reknit {

struct AdamSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled = true;  ///< AdamW; false: the decay joins the gradient
  bool bias_correction = true;
};
struct AdagradSettings {
  double eps = 1e-10;
  double weight_decay = 0.0;
  double lr_decay = 0.0;
  double initial_accumulator = 0.0;
};
/// LAMB: each parameter's step is as long as the parameter, times the rate; the ratio of the
/// two lengths stays in [min_coeff, max_coeff].
struct LambSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool bias_correction = true;
  double min_coeff = 0.01;
  double max_coeff = 10.0;
};
struct LionSettings {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;
};
struct SgdSettings {
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;
};
/// Muon (Jordan et al., 2024) for matrices that are neither of an embedding nor an output table
/// (no "embed", "lm_head" or "head.table" in their name), AdamW for everything else.
struct MuonSettings {
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.0;  ///< of all parameters
  int64_t ns_steps = 5;
  bool match_adamw = false;       ///< steps as long as AdamW's: 0.2 sqrt(max(rows, columns))
                                  ///< times the rate, instead of sqrt(max(1, rows / columns))
  std::optional<double> muon_lr;  ///< of the matrices; none: the common rate
  std::optional<double> adam_lr;  ///< of the others
  double beta1 = 0.9;             ///< of the others, with beta2 and eps
  double beta2 = 0.95;
  double eps = 1e-10;
  /// Elements of the matrices that are exchanged at a time, over all ranks.
  int64_t exchange_numel = int64_t{1} << 28;
};

/// The rate that parameters whose name contains `contains` have of their own.
struct ParamRate {
  std::string contains;
  double lr;
};

struct OptimizerSettings {
  std::variant<AdamSettings, AdagradSettings, LambSettings, LionSettings, SgdSettings, MuonSettings>
      kind;
  std::vector<ParamRate> rates = {};  ///< the first that fits a name counts
  bool decay_all = false;             ///< true: norms and biases decay as well
};

/// How many numbers an optimizer keeps for each element of a trained parameter, in fp32.
int states_of(const OptimizerSettings& settings, const ParamSpec& param);
/// The least of that over all parameters.
int common_states(const OptimizerSettings& settings);

/// What a schedule says of one update.
struct UpdateRates {
  std::vector<double> lr;       ///< for each of Optimizer::base_rates
  std::optional<double> beta1;  ///< in place of the settings' (Adam, LAMB, Lion)
  std::optional<double> beta2;
  std::optional<double> weight_decay;  ///< in place of the settings'
};

/// Owns the states (fp32, as long as the shards; zero at first but for Adagrad's). The store
/// must be sealed and outlive it.
class Optimizer {
 public:
  static std::unique_ptr<Optimizer> create(Store& store, const OptimizerSettings& settings,
                                           double lr);
  virtual ~Optimizer() = default;

  /// The rates before any schedule, the common one first.
  const std::vector<double>& base_rates() const { return base_rates_; }
  /// One update of every shard of begin_update: gradients times `grad_scale` ([1] fp32, on
  /// the device: unscale times clip) move masters and weights. LAMB and Muon use the
  /// gradients as scratch, and are collective over the shard ranks (LAMB: and replicas).
  void update(const std::vector<OptimizerShard>& shards, const UpdateRates& rates,
              const at::Tensor& grad_scale);

  /// "adam", "adagrad", "lamb", "lion", "sgd", "muon": as checkpoints call it.
  const std::string& name() const { return name_; }
  /// Updates applied so far.
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }

  /// Names of the states that a parameter has; the same on every rank.
  virtual std::vector<std::string> state_names(const ParamSpec& param) const = 0;
  /// State `name` of slice `slice` of shard `shard` (as in Store::shards), flat, as long as
  /// the slice; owned by the optimizer.
  virtual at::Tensor state(size_t shard, size_t slice, const std::string& name) const = 0;
  /// Of the states on this rank.
  virtual int64_t bytes() const = 0;

 protected:
  Optimizer(std::string name, const OptimizerSettings& settings, double lr, double weight_decay);

  virtual void apply(const std::vector<OptimizerShard>& shards, const UpdateRates& rates,
                     const at::Tensor& grad_scale) = 0;
  /// Which base rate a parameter has unless one of the settings' `rates` fits its name.
  virtual size_t own_rate(const ParamSpec&) const { return 0; }
  size_t add_rate(double lr);

  /// The slice's elements with the rate and decay of its parameter.
  ops::UpdateRange range_of(const ShardSlice& slice, const UpdateRates& rates) const;

 private:
  std::string name_;
  std::vector<std::pair<std::string, size_t>> named_rates_;  ///< part of a name, base rate
  std::vector<double> base_rates_;
  double weight_decay_;
  bool decay_all_;
  int64_t step_ = 0;
};

}  // namespace reknit
