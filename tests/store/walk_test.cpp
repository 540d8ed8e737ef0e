// Long programs: random walks over the store's legal calls, and disturbed collectives.
#include "reknit/base/random.h"
#include "tests/support/toy_model.h"

#include <gtest/gtest.h>

#include <random>

namespace reknit {
namespace {

using namespace testing_support;

const ToyModel kModel{{{{{8, 5}}, {{3}, true, false}},
                       {{{7, 9}}, {{2, 2}, false}, {{0, 4}}},
                       {{{64}}},
                       {{{64}}},
                       {{{5}, false}}}};

/// What every parameter must hold, in plain fp64 arithmetic.
class Reference {
 public:
  Reference(int world, const TrainerSettings& settings) : world_(world), settings_(settings) {
    for (size_t g = 0; g < kModel.groups.size(); ++g) {
      auto& group = params_.emplace_back();
      for (size_t p = 0; p < kModel.groups[g].size(); ++p) {
        const at::Tensor weight = kModel.initial(g, p).to(at::kDouble);
        group.push_back({weight, at::zeros_like(weight), at::zeros_like(weight),
                         at::zeros_like(weight), kModel.groups[g][p]});
      }
    }
  }

  at::Tensor& weight(size_t group, size_t param) { return params_[group][param].weight; }

  void backward(int step, int micro) {
    for (auto& group : params_) {
      for (Param& param : group) {
        for (int rank = 0; rank < world_ && param.shape.trainable; ++rank) {
          param.grad += ToyModel::gradient(param.weight, rank, step, micro).to(at::kDouble);
        }
      }
    }
  }

  void drop() {
    for (auto& group : params_) {
      for (Param& param : group) {
        param.grad.zero_();
      }
    }
  }

  void step() {
    double squares = 0;
    for (auto& group : params_) {
      for (Param& param : group) {
        squares += param.grad.pow(2).sum().item<double>();
      }
    }
    ++steps_;
    const double clip = std::min(1.0, settings_.clip / (std::sqrt(squares) + 1e-6));
    for (auto& group : params_) {
      for (Param& param : group) {
        if (param.shape.trainable) {
          update(param, clip);
        }
      }
    }
    drop();
  }

 private:
  struct Param {
    at::Tensor weight, m, v, grad;
    ToyParam shape;
  };

  void update(Param& param, double clip) const {
    const auto& adam = std::get<AdamSettings>(settings_.optimizer.kind);
    const at::Tensor grad = param.grad * clip;
    param.m = param.m * adam.beta1 + grad * (1 - adam.beta1);
    param.v = param.v * adam.beta2 + grad * grad * (1 - adam.beta2);
    const at::Tensor m_hat = param.m / (1 - std::pow(adam.beta1, steps_));
    const at::Tensor v_hat = param.v / (1 - std::pow(adam.beta2, steps_));
    const double decay = param.shape.decay ? adam.weight_decay : 0.0;
    param.weight = param.weight * (1 - settings_.lr * decay) -
                   m_hat / (v_hat.sqrt() + adam.eps) * settings_.lr;
  }

  int world_;
  TrainerSettings settings_;
  std::vector<std::vector<Param>> params_;
  int steps_ = 0;
};

/// One rank's walk: the store, the reference beside it, and the calls that are legal now.
class Walk {
 public:
  Walk(Store& store, const TrainerSettings& settings, uint64_t seed, std::vector<GroupId> order)
      : store_(store),
        trainer_(store, settings),
        reference_(this_rank().world, settings),
        random_(seed),
        order_(std::move(order)) {}

  void take_step() {
    if (store_.pinned()) {
      pick(3) == 0 ? store_.unpin() : read_all(Phase::kGenerate);
      return;
    }
    switch (pick(8)) {
      case 0:
        store_.pin();
        break;
      case 1:
        read_all(Phase::kGenerate);
        store_.finish_pass();
        break;
      case 2:
        read_all(Phase::kForward);
        store_.finish_pass();
        break;
      case 3:
        edit();
        break;
      case 4:
        store_.drop_step();
        reference_.drop();
        break;
      case 5:
        branch();
        break;
      case 6:
        read_all(Phase::kForward);
        backward();
        break;
      default:
        EXPECT_TRUE(trainer_.step().applied);
        reference_.step();
        ++step_;
    }
  }

  void read_all(Phase phase) {
    for (const GroupId g : order_) {
      expect_group(store_.full(g, phase), g);
    }
  }

 private:
  uint64_t pick(uint64_t choices) { return random_() % choices; }

  void expect_group(const Full& weights, GroupId g) {
    for (size_t p = 0; p < kModel.groups[g].size(); ++p) {
      EXPECT_TRUE(at::allclose(weights[p].read().cpu().to(at::kDouble), reference_.weight(g, p),
                               1e-4, fp32_bound(1e-5)))
          << "group " << g << " param " << p << " in update " << step_;
    }
  }

  // Some groups only, as a model with an optional layer.
  void branch() {
    for (const GroupId g : order_) {
      if (pick(2) == 0) {
        expect_group(store_.full(g, Phase::kForward), g);
      }
    }
    store_.finish_pass();
  }

  void edit() {
    const auto g = static_cast<GroupId>(pick(kModel.groups.size()));
    const auto p = static_cast<int>(pick(kModel.groups[g].size()));
    const auto owner = static_cast<int>(pick(static_cast<uint64_t>(this_rank().world)));
    Edit edit = store_.edit(g, p, owner);
    edit.value().mul_(this_rank().rank == owner ? 0.5 : 100.0);
    std::move(edit).commit();
    reference_.weight(g, p) = reference_.weight(g, p) * 0.5;
  }

  void backward() {
    std::map<GroupId, int> left;
    for (const GroupId g : order_) {
      ++left[g];
    }
    for (auto g = order_.rbegin(); g != order_.rend(); ++g) {
      const Full weights = store_.full(*g, Phase::kBackward);
      Gradients grads = store_.gradients(*g);
      const bool last = --left[*g] == 0;
      for (size_t p = 0; p < kModel.groups[*g].size() && last; ++p) {
        if (grads[p].defined()) {
          grads[p].add_(ToyModel::gradient(weights[p].read(), this_rank().rank, step_, micro_));
        }
      }
      store_.reduce(std::move(grads), last);
    }
    reference_.backward(step_, micro_++);
    store_.finish_pass();
  }

  Store& store_;
  Trainer trainer_;
  Reference reference_;
  std::mt19937_64 random_;
  std::vector<GroupId> order_;
  int step_ = 0;
  int micro_ = 0;
};

void walk(Placement placement, int depth, bool tied, uint64_t seed) {
  on_ranks(4, [&](std::shared_ptr<Communicator> comm) {
    SlotPool pool(rank_memory, true);
    Store store({.name = "toy",
                 .placement = placement,
                 .persistence_threshold = static_cast<int64_t>(seed % 2) * 10,
                 .prefetch_depth = depth,
                 .allocator = {}},
                StoreComms::over(comm, placement.shard_size), pool);
    std::vector<GroupId> order;
    for (size_t g = 0; g < kModel.groups.size(); ++g) {
      order.push_back(store.add(kModel.spec(g)));
    }
    if (tied) {
      order.push_back(0);
      store.set_order(order);
    }
    store.seal();
    pool.seal();
    const int64_t slots = pool.total_bytes();
    load_toy(store, kModel);
    ToyRun run;
    Walk walk(store, run.trainer, seed, order);
    for (int i = 0; i < 60; ++i) {
      walk.take_step();
      EXPECT_TRUE(store.pinned() || pool.slots_in_use() == 0);
    }
    walk.read_all(store.pinned() ? Phase::kGenerate : Phase::kForward);
    EXPECT_EQ(pool.total_bytes(), slots);
    if (!store.pinned()) {
      store.finish_pass();
    }
  });
}

TEST(Walk, AnyInterleavingOfGenerateEvaluateTrainEditAndStepIsConsistent) {
  uint64_t seed = 1;
  for (const Placement placement :
       {Placement{3, 4}, Placement{3, 2}, Placement{2, 4}, Placement{1, 2}, Placement{0, 4}}) {
    for (const int depth : {0, 1, 3}) {
      walk(placement, depth, seed % 2 == 0, seed);
      ++seed;
      walk(placement, depth, seed % 2 == 0, seed);
      ++seed;
    }
  }
}

TEST(Walk, DelayedCollectivesOverPoisonedSlotsGiveTheSameBits) {
  ToyRun run;
  run.placement = {3, 2};
  run.micro_batches = 2;
  run.steps = 2;
  run.prefetch_depth = 2;
  const auto expected = run_toy(kModel, 4, run);
  run.poison_released = true;
  for (const uint64_t seed : {1, 2, 3}) {
    run.faults = [seed](CommKind kind, int64_t index, int rank) {
      std::mt19937_64 random(seed * 1'000'003 + index * 101 + rank * 7 + static_cast<int>(kind));
      Fault fault;
      fault.delay_start = std::chrono::milliseconds(random() % 3);
      fault.delay_result = std::chrono::milliseconds(random() % 3);
      return fault;
    };
    const auto disturbed = run_toy(kModel, 4, run);
    for (size_t rank = 0; rank < expected.size(); ++rank) {
      for (size_t i = 0; i < expected[rank].size(); ++i) {
        EXPECT_TRUE(at::equal(disturbed[rank][i], expected[rank][i])) << "rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace reknit
