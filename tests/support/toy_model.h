// A model without layers: gradients are a closed formula of weights, step and rank, so
// that any placement can be checked against a few lines of plain arithmetic.
#pragma once

#include "reknit/engine/trainer.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

#include <vector>

namespace reknit::testing_support {

struct ToyParam {
  std::vector<int64_t> shape;
  bool trainable = true;
  bool decay = true;
};

/// Groups of parameters named g<i>.p<j>.
struct ToyModel {
  std::vector<std::vector<ToyParam>> groups;

  GroupSpec spec(size_t group) const {
    GroupSpec spec{str("g", group), {}};
    for (size_t p = 0; p < groups[group].size(); ++p) {
      const ToyParam& param = groups[group][p];
      spec.params.push_back({.name = str("g", group, ".p", p),
                             .shape = param.shape,
                             .trainable = param.trainable,
                             .decay = param.decay});
    }
    return spec;
  }

  at::Tensor initial(size_t group, size_t param) const {
    const auto& shape = groups[group][param].shape;
    const int64_t numel = c10::multiply_integers(shape);
    return at::sin(at::arange(numel, at::kFloat) + static_cast<double>(7 * group + param))
        .view(shape);
  }

  /// The gradient of micro-batch `micro` of step `step` on `rank`.
  static at::Tensor gradient(const at::Tensor& weight, int rank, int step, int micro) {
    const auto numbers =
        at::arange(weight.numel(), weight.options().dtype(at::kFloat)).view(weight.sizes());
    return weight.to(at::kFloat) * 0.25 + at::cos(numbers * 0.7 + rank + 3 * step + 5 * micro);
  }
};

struct ToyRun {
  Placement placement;
  at::ScalarType dtype = at::kFloat;
  int64_t persistence_threshold = 0;
  int prefetch_depth = 1;
  int micro_batches = 1;
  int steps = 3;
  FaultPlan faults = {};
  bool poison_released = kPoisonReleased;
  TrainerSettings trainer{.name = "toy",
                          .lr = 0.05,
                          .schedule = {},
                          .optimizer = {.kind = AdamSettings{.weight_decay = 0.1}},
                          .clip = 1.0,
                          .scaler = {}};
};

inline void load_toy(Store& store, const ToyModel& model) {
  for (size_t g = 0; g < model.groups.size(); ++g) {
    for (size_t p = 0; p < model.groups[g].size(); ++p) {
      store.write(static_cast<GroupId>(g), static_cast<int>(p), 0, model.initial(g, p).reshape(-1));
    }
  }
}

/// Forward over all groups in order, backward in reverse; gradients times loss_scale.
inline void toy_pass(Store& store, const ToyModel& model, int step, int micro, double loss_scale) {
  for (GroupId g = 0; g < store.num_groups(); ++g) {
    const Full weights = store.full(g, Phase::kForward);
    for (size_t p = 0; p < model.groups[g].size(); ++p) {
      weights[p].read();
    }
  }
  for (GroupId g = store.num_groups() - 1; g >= 0; --g) {
    const Full weights = store.full(g, Phase::kBackward);
    Gradients grads = store.gradients(g);
    for (size_t p = 0; p < model.groups[g].size(); ++p) {
      if (grads[p].defined()) {
        grads[p].add_(ToyModel::gradient(weights[p].read(), this_rank().rank, step, micro) *
                      loss_scale);
      }
    }
    store.reduce(std::move(grads));
  }
}

/// Every parameter, whole, on the CPU.
inline std::vector<at::Tensor> toy_weights(Store& store, const ToyModel& model) {
  std::vector<at::Tensor> all;
  for (size_t g = 0; g < model.groups.size(); ++g) {
    for (size_t p = 0; p < model.groups[g].size(); ++p) {
      all.push_back(store.read_full(static_cast<GroupId>(g), static_cast<int>(p)).cpu());
    }
  }
  return all;
}

/// The weights after the run, in order, as seen by every rank in turn.
inline std::vector<std::vector<at::Tensor>> run_toy(const ToyModel& model, int world,
                                                    const ToyRun& run) {
  std::vector<std::vector<at::Tensor>> result(world);
  on_ranks(
      world,
      [&](std::shared_ptr<Communicator> comm) {
        SlotPool pool(rank_memory, run.poison_released);
        Store store({.name = "toy",
                     .dtype = run.dtype,
                     .placement = run.placement,
                     .persistence_threshold = run.persistence_threshold,
                     .prefetch_depth = run.prefetch_depth,
                     .training = true,
                     .allocator = {}},
                    StoreComms::over(comm, run.placement.shard_size), pool);
        for (size_t g = 0; g < model.groups.size(); ++g) {
          store.add(model.spec(g));
        }
        store.seal();
        pool.seal();
        load_toy(store, model);
        Trainer trainer(store, run.trainer);
        for (int step = 0; step < run.steps; ++step) {
          for (int micro = 0; micro < run.micro_batches; ++micro) {
            toy_pass(store, model, step, micro, trainer.loss_scale());
          }
          trainer.step();
        }
        result[this_rank().rank] = toy_weights(store, model);
        EXPECT_EQ(pool.slots_in_use(), 0);
      },
      patience(), run.faults);
  return result;
}

/// The same in plain arithmetic: sum the gradients of all ranks, clip, AdamW.
inline std::vector<at::Tensor> toy_reference(const ToyModel& model, int world, const ToyRun& run) {
  struct Entry {
    at::Tensor weight, m, v;
    ToyParam param;
  };
  std::vector<Entry> entries;
  for (size_t g = 0; g < model.groups.size(); ++g) {
    for (size_t p = 0; p < model.groups[g].size(); ++p) {
      const at::Tensor weight = model.initial(g, p).to(at::kDouble);
      entries.push_back(
          {weight, at::zeros_like(weight), at::zeros_like(weight), model.groups[g][p]});
    }
  }
  const auto& adam = std::get<AdamSettings>(run.trainer.optimizer.kind);
  for (int step = 0; step < run.steps; ++step) {
    std::vector<at::Tensor> grads;
    double squares = 0;
    for (const Entry& entry : entries) {
      at::Tensor grad = at::zeros_like(entry.weight);
      for (int micro = 0; micro < run.micro_batches && entry.param.trainable; ++micro) {
        for (int rank = 0; rank < world; ++rank) {
          grad += ToyModel::gradient(entry.weight, rank, step, micro).to(at::kDouble);
        }
      }
      squares += grad.pow(2).sum().item<double>();
      grads.push_back(grad);
    }
    const double clip = std::min(1.0, run.trainer.clip / (std::sqrt(squares) + 1e-6));
    for (size_t i = 0; i < entries.size(); ++i) {
      Entry& entry = entries[i];
      if (!entry.param.trainable) {
        continue;
      }
      const at::Tensor grad = grads[i] * clip;
      entry.m = entry.m * adam.beta1 + grad * (1 - adam.beta1);
      entry.v = entry.v * adam.beta2 + grad * grad * (1 - adam.beta2);
      const at::Tensor m_hat = entry.m / (1 - std::pow(adam.beta1, step + 1));
      const at::Tensor v_hat = entry.v / (1 - std::pow(adam.beta2, step + 1));
      const double decay = entry.param.decay ? adam.weight_decay : 0.0;
      entry.weight = entry.weight * (1 - run.trainer.lr * decay) -
                     m_hat / (v_hat.sqrt() + adam.eps) * run.trainer.lr;
    }
  }
  std::vector<at::Tensor> weights;
  for (const Entry& entry : entries) {
    weights.push_back(entry.weight);
  }
  return weights;
}

}  // namespace reknit::testing_support
