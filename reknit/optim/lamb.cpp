// LAMB: Adam with steps as long as the parameters.
#include "reknit/optim/flat_states.h"

#include <ATen/ATen.h>

#include <map>

namespace reknit {
namespace {

/// LAMB: the lengths of all parameters and of their directions travel in one reduction.
class Lamb final : public FlatStates {
 public:
  Lamb(Store& store, const OptimizerSettings& settings, double lr, const LambSettings& own)
      : FlatStates("lamb", store, settings, lr, own.weight_decay, {"exp_avg", "exp_avg_sq"}),
        store_(store),
        settings_(own) {
    std::map<const ParamSpec*, int64_t> index;
    for (GroupId g = 0; g < store.num_groups(); ++g) {
      for (const ParamSpec& param : store.spec(g).params) {
        if (param.trainable) {
          index.emplace(&param, num_params_++);
        }
      }
    }
    for (const OptimizerShard& shard : store.shards()) {
      std::vector<int64_t> params;
      for (const ShardSlice& slice : shard.slices) {
        params.push_back(index.at(slice.param));
      }
      device_index_.push_back(at::tensor(params, at::kLong).to(shard.master.device()));
      index_.push_back(std::move(params));
    }
  }

 private:
  void apply(const std::vector<OptimizerShard>& shards, const UpdateRates& rates,
             const at::Tensor& grad_scale) override {
    const ops::AdamStep step{.beta1 = rates.beta1.value_or(settings_.beta1),
                             .beta2 = rates.beta2.value_or(settings_.beta2),
                             .eps = settings_.eps,
                             .bias_correction = settings_.bias_correction,
                             .step = this->step()};
    const auto options = at::TensorOptions(at::kDouble).device(this_rank().device);
    const at::Tensor squares = at::zeros({2, num_params_}, options);
    std::vector<std::vector<ops::UpdateRange>> ranges(shards.size());
    for (size_t i = 0; i < shards.size(); ++i) {
      for (const ShardSlice& slice : shards[i].slices) {
        ranges[i].push_back(range_of(slice, rates));
      }
      ops::lamb_direction(flat(shards, i), grad_scale, step, ranges[i]);
      squares[0].index_add_(0, device_index_[i], ops::sum_squares(shards[i].master, ranges[i]));
      squares[1].index_add_(0, device_index_[i], ops::sum_squares(shards[i].grad, ranges[i]));
    }
    const at::Tensor ratios = ratios_of(over_ranks(squares));
    for (size_t i = 0; i < shards.size(); ++i) {
      for (size_t j = 0; j < ranges[i].size(); ++j) {
        ranges[i][j].weight_decay = 0.0;  // it is part of the direction
        ranges[i][j].scale = index_[i][j];
      }
      ops::apply_direction(flat(shards, i), ratios, ranges[i]);
    }
  }

  at::Tensor over_ranks(at::Tensor squares) {
    const Stream& stream = this_rank().compute;
    if (store_.settings().placement.optimizer_shards() > 1) {
      squares =
          store_.comms().reduce->all_reduce({squares}, ReduceOp::kSum, stream).wait(stream).front();
    }
    // As for the norm of the gradient: replicas must not drift by a bit.
    if (store_.comms().replica) {
      squares = store_.comms()
                    .replica->all_reduce({squares}, ReduceOp::kMax, stream)
                    .wait(stream)
                    .front();
    }
    return squares;
  }

  at::Tensor ratios_of(const at::Tensor& squares) const {
    const at::Tensor norms = squares.sqrt();
    const at::Tensor ratio = (norms[0] / norms[1]).clamp(settings_.min_coeff, settings_.max_coeff);
    const at::Tensor usable = (norms[0] > 0).logical_and(norms[1] > 0);
    return at::where(usable, ratio, at::ones_like(ratio)).to(at::kFloat);
  }

  Store& store_;
  LambSettings settings_;
  int64_t num_params_ = 0;
  std::vector<std::vector<int64_t>> index_;  ///< [shard][slice]: the parameter's number
  std::vector<at::Tensor> device_index_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(Store& store, const OptimizerSettings& settings, double lr) {
  return std::make_unique<Lamb>(store, settings, lr, std::get<LambSettings>(settings.kind));
}

}  // namespace reknit
