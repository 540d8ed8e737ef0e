// A toy model in training whose steps depend on no rank count, to save and continue.
#pragma once

#include "reknit/engine/run_state.h"
#include "tests/support/toy_model.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

namespace reknit::testing_support {

/// How a run is placed.
struct RunPlace {
  int world = 1;
  int zero_stage = 3;
  int shard_size = 0;  ///< 0: the world
  at::ScalarType dtype = at::kFloat;
  int64_t persistence_threshold = 0;
  bool training = true;
  int nodes = 1;  ///< for the caller to spread the ranks over
};

inline std::ostream& operator<<(std::ostream& out, const RunPlace& place) {
  return out << place.world << " ranks, stage " << place.zero_stage << ", shards "
             << place.shard_size << ", " << c10::toString(place.dtype) << ", persistence "
             << place.persistence_threshold << ", nodes " << place.nodes;
}

/// Odd and empty sizes, sizes below the world, frozen parts.
inline ToyModel run_toy_model() {
  return {{{{{7, 5}}, {{3}, true, false}},
           {{{33, 4}}, {{5, 5}, /*trainable=*/false}, {{0, 4}}},
           {{{2, 3}, /*trainable=*/false}},
           {{{129}}, {{1}}, {{1}, /*trainable=*/false}}}};
}

/// One rank's toy in training.
class ToyRank {
 public:
  static constexpr int kPieces = 12;  ///< of the global batch: divisible by 1, 2, 3, 4

  ToyRank(
      const ToyModel& model, const RunPlace& place, std::shared_ptr<Communicator> comm,
      const TrainerSettings& settings = {.name = "toy",
                                         .lr = 0.05,
                                         .schedule = {},
                                         .optimizer = {.kind = AdamSettings{.weight_decay = 0.1}},
                                         .clip = 1.0,
                                         .scaler = {.initial = 64, .window = 2}})
      : model_(model),
        pool_(rank_memory),
        store_({.name = "toy",
                .dtype = place.dtype,
                .placement = {place.zero_stage,
                              place.shard_size == 0 ? place.world : place.shard_size},
                .persistence_threshold = place.persistence_threshold,
                .training = place.training,
                .allocator = {}},
               StoreComms::over(comm, place.shard_size == 0 ? place.world : place.shard_size),
               pool_),
        world_(std::move(comm)) {
    for (size_t g = 0; g < model_.groups.size(); ++g) {
      store_.add(model_.spec(g));
    }
    store_.seal();
    pool_.seal();
    if (place.training) {
      trainer_ = std::make_unique<Trainer>(store_, settings);
    }
  }

  /// One step's forward and backward, without the update.
  void pass() {
    for (GroupId g = store_.num_groups() - 1; g >= 0; --g) {
      const Full weights = store_.full(g, Phase::kBackward);
      Gradients grads = store_.gradients(g);
      for (size_t p = 0; p < model_.groups[g].size(); ++p) {
        for (int piece = world_->rank(); grads[p].defined() && piece < kPieces;
             piece += world_->size()) {
          grads[p].add_(gradient(grads[p], piece) * trainer_->loss_scale());
        }
      }
      store_.reduce(std::move(grads));
    }
  }

  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      pass();
      trainer_->step();
      ++state_step_;
    }
  }

  RunState state() {
    return {world_.get(), state_step_, {{"toy", &store_, trainer_.get(), save_frozen_}}};
  }
  std::string save(const std::string& out, int keep = 2) {
    return save_run(state(), {{"ema", 0.1}}, out, keep);
  }
  void load(const std::string& path) {
    RunState run = state();
    load_run(run, path);
    state_step_ = run.step;
  }
  void set_save_frozen(bool save) { save_frozen_ = save; }

  Store& store() { return store_; }
  Trainer& trainer() { return *trainer_; }
  std::vector<at::Tensor> weights() { return toy_weights(store_, model_); }

 private:
  // Multiples of 1/8, so that sums over pieces and ranks are exact in every dtype.
  at::Tensor gradient(const at::Tensor& like, int piece) const {
    const auto numbers =
        at::arange(like.numel(), like.options().dtype(at::kLong)) * 7 + piece * 3 + state_step_;
    return (at::remainder(numbers, 8) - 3).to(at::kFloat).div(8).view(like.sizes());
  }

  const ToyModel& model_;
  SlotPool pool_;
  Store store_;
  std::shared_ptr<Communicator> world_;
  std::unique_ptr<Trainer> trainer_;
  int64_t state_step_ = 0;
  bool save_frozen_ = true;
};

}  // namespace reknit::testing_support
