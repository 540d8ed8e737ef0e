#include "reknit/optim/grad_norm.h"

#include "reknit/kernels/update.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace reknit {
namespace {

// Parameters in model order, so that all ranks agree on an index.
std::vector<const ParamSpec*> trainable_params(const Store& store) {
  std::vector<const ParamSpec*> params;
  for (GroupId g = 0; g < store.num_groups(); ++g) {
    for (const ParamSpec& param : store.spec(g).params) {
      if (param.trainable) {
        params.push_back(&param);
      }
    }
  }
  return params;
}

bool holds(const at::Tensor& flat, bool inf) {
  return (inf ? flat.isinf() : flat.isnan()).any().item<bool>();
}

}  // namespace

double global_grad_norm(Store& store, const std::vector<OptimizerShard>& shards) {
  const Stream& stream = this_rank().compute;
  at::Tensor total = at::zeros({1}, at::TensorOptions(at::kDouble).device(this_rank().device));
  for (const OptimizerShard& shard : shards) {
    total.add_(ops::sum_squares(shard.grad));
  }
  if (store.settings().placement.optimizer_shards() > 1) {
    total =
        store.comms().reduce->all_reduce({total}, ReduceOp::kSum, stream).wait_on_host().front();
  }
  // Shard groups may have summed in another order: one bit would let the replicas drift.
  if (store.comms().replica) {
    total =
        store.comms().replica->all_reduce({total}, ReduceOp::kMax, stream).wait_on_host().front();
  }
  return std::sqrt(total.item<double>());
}

Nonfinite first_nonfinite(Store& store, const std::vector<OptimizerShard>& shards) {
  const auto params = trainable_params(store);
  const auto count = static_cast<double>(params.size());
  // Per kind the maximum of (count - index): the first parameter wins.
  at::Tensor found = at::zeros({2}, at::kDouble);
  auto* best = found.data_ptr<double>();
  for (const OptimizerShard& shard : shards) {
    for (const ShardSlice& slice : shard.slices) {
      const at::Tensor flat = shard.grad.narrow(0, slice.extent.begin, slice.extent.size());
      const auto index = std::find(params.begin(), params.end(), slice.param) - params.begin();
      for (int kind = 0; kind < 2; ++kind) {
        if (holds(flat, kind == 0)) {
          best[kind] = std::max(best[kind], count - static_cast<double>(index));
        }
      }
    }
  }
  const Stream& stream = this_rank().compute;
  found = store.comms()
              .reduce->all_reduce({found.to(this_rank().device)}, ReduceOp::kMax, stream)
              .wait_on_host()
              .front()
              .cpu();
  const double inf = found[0].item<double>();
  const double nan = found[1].item<double>();
  if (inf == 0 && nan == 0) {
    return {};
  }
  const auto index = static_cast<size_t>(count - std::max(inf, nan));
  return {params[index]->name, inf >= nan ? "inf" : "NaN"};
}

}  // namespace reknit
