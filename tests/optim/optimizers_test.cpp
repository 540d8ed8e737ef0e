// Every optimizer against PyTorch's or its published rule, under every placement.
#include "reknit/optim/optimizer.h"

#include "reknit/models/groups.h"
#include "reknit/optim/configured.h"
#include "reknit/optim/flat_states.h"
#include "reknit/optim/matrix_exchange.h"
#include "reknit/optim/newton_schulz.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <mutex>

namespace reknit {
namespace {

using Weights = std::vector<std::vector<float>>;  // by parameter

constexpr double kLr = 0.05;

/// The parameters of tests/golden/optimizers.py, in two groups.
std::vector<GroupSpec> groups() {
  return {{"embed", {{.name = "embed.weight", .shape = {5, 4}}}},
          {"block",
           {{.name = "block.wide.weight", .shape = {3, 7}},
            {.name = "block.tall.weight", .shape = {9, 4}},
            {.name = "block.square.weight", .shape = {6, 6}},
            {.name = "block.norm.weight", .shape = {7}, .decay = false},
            {.name = "block.bias", .shape = {1}, .decay = false}}}};
}

at::Tensor gradient(const at::Tensor& weight, int step) {
  const at::Tensor numbers = at::arange(weight.numel(), weight.options()).view(weight.sizes());
  return at::cos(numbers * 0.7 + 3 * step) + weight * 0.25;
}

struct Trial {
  OptimizerSettings settings;
  int world = 1;
  Placement placement = {3, 1};
  int64_t persistence = 0;
  int steps = 5;
  double lr = kLr;
};

/// One rank of a trial: a store with its first weights, and its optimizer.
struct Rank {
  SlotPool pool{testing_support::rank_memory};
  Store store;
  std::unique_ptr<Optimizer> optimizer;

  Rank(const Trial& trial, const std::shared_ptr<Communicator>& comm)
      : store({.name = "toy",
               .placement = trial.placement,
               .persistence_threshold = trial.persistence,
               .allocator = {}},
              StoreComms::over(comm, trial.placement.shard_size), pool) {
    for (const GroupSpec& group : groups()) {
      store.add(group);
    }
    store.seal();
    pool.seal();
    int number = 0;
    for (GroupId g = 0; g < store.num_groups(); ++g) {
      for (size_t p = 0; p < store.spec(g).params.size(); ++p) {
        const int64_t n = c10::multiply_integers(store.spec(g).params[p].shape);
        store.write(g, static_cast<int>(p), 0, at::sin(at::arange(n, at::kFloat) * 0.37 + number));
        ++number;
      }
    }
    optimizer = Optimizer::create(store, trial.settings, trial.lr);
  }

  void step(int number) {
    for (GroupId g = store.num_groups() - 1; g >= 0; --g) {
      const Full weights = store.full(g, Phase::kBackward);
      Gradients grads = store.gradients(g);
      for (size_t p = 0; p < store.spec(g).params.size(); ++p) {
        grads[p].copy_(gradient(weights[p].read(), number) / store.comms().world->size());
      }
      store.reduce(std::move(grads));
    }
    store.finish_pass();
    store.finish_gradients();
    // Twice the gradient, half the scale: unscaling is part of every update.
    const std::vector<OptimizerShard> shards = store.begin_update();
    for (const OptimizerShard& shard : shards) {
      shard.grad.mul_(2);
    }
    optimizer->update(shards, {.lr = optimizer->base_rates()},
                      at::full({1}, 0.5f, at::device(this_rank().device)));
    store.end_update();
  }

  Weights weights() {
    Weights all;
    for (GroupId g = 0; g < store.num_groups(); ++g) {
      for (size_t p = 0; p < store.spec(g).params.size(); ++p) {
        const at::Tensor full =
            store.read_full(g, static_cast<int>(p)).cpu().reshape(-1).contiguous();
        const auto* values = full.const_data_ptr<float>();
        all.emplace_back(values, values + full.numel());
      }
    }
    return all;
  }
};

/// Weights after each step, by rank.
std::vector<std::vector<Weights>> run(const Trial& trial) {
  std::vector<std::vector<Weights>> result(trial.world);
  testing_support::on_ranks(trial.world, [&](std::shared_ptr<Communicator> comm) {
    Rank rank(trial, comm);
    for (int step = 0; step < trial.steps; ++step) {
      rank.step(step);
      result[this_rank().rank].push_back(rank.weights());
    }
    EXPECT_EQ(rank.optimizer->step(), trial.steps);
  });
  return result;
}

double distance(const Weights& a, const Weights& b) {
  double largest = a.size() == b.size() ? 0.0 : 1e9;
  for (size_t p = 0; p < a.size() && p < b.size(); ++p) {
    EXPECT_EQ(a[p].size(), b[p].size());
    for (size_t i = 0; i < a[p].size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(a[p][i]) - b[p][i]));
    }
  }
  return largest;
}

struct Named {
  const char* name;
  OptimizerSettings settings;
  double bound = 3e-6;
};

std::vector<Named> optimizers() {
  const LambSettings lamb{.beta2 = 0.95, .weight_decay = 0.1};
  LambSettings bounded = lamb;
  bounded.min_coeff = 0.3;
  bounded.max_coeff = 0.6;
  // Newton-Schulz works in bf16: a gradient's last bit may cost three digits of a step.
  constexpr double kMuonBound = 1e-3;
  const MuonSettings muon{.weight_decay = 0.1, .muon_lr = 0.02, .exchange_numel = 60};
  MuonSettings plain = muon;
  plain.nesterov = false;
  plain.match_adamw = true;
  plain.exchange_numel = 1000;
  return {
      {"adam", {.kind = AdamSettings{.beta2 = 0.95, .weight_decay = 0.1, .decoupled = false}}},
      {"adamw", {.kind = AdamSettings{.beta2 = 0.95, .weight_decay = 0.1}}},
      {"adagrad",
       {.kind =
            AdagradSettings{
                .eps = 1e-6, .weight_decay = 0.1, .lr_decay = 0.1, .initial_accumulator = 0.5}}},
      {"sgd", {.kind = SgdSettings{.weight_decay = 0.1}}},
      {"sgd_momentum",
       {.kind = SgdSettings{.momentum = 0.8, .dampening = 0.3, .weight_decay = 0.1}}},
      {"sgd_nesterov",
       {.kind = SgdSettings{.momentum = 0.8, .nesterov = true, .weight_decay = 0.1}}},
      {"lion", {.kind = LionSettings{.weight_decay = 0.1}}},
      {"lamb", {.kind = lamb}},
      {"lamb_bounded", {.kind = bounded}},
      {"muon", {.kind = muon}, kMuonBound},
      {"muon_plain", {.kind = plain}, kMuonBound},
  };
}

class EveryOptimizer : public testing::TestWithParam<Named> {};

TEST_P(EveryOptimizer, GivesTheWeightsOfItsRuleUnderEveryPlacement) {
  std::ifstream file(golden_folder("optimizers") / "optimizers.json");
  const auto golden = nlohmann::json::parse(file)["optimizers"][GetParam().name];
  ASSERT_EQ(golden.size(), 5);
  std::vector<Trial> trials;
  for (int stage = 0; stage <= 3; ++stage) {
    for (int world = 1; world <= 4; ++world) {
      trials.push_back({GetParam().settings, world, {stage, world}});
    }
  }
  trials.push_back({GetParam().settings, 4, {3, 2}});
  trials.push_back({GetParam().settings, 3, {3, 3}, 30});
  for (const Trial& trial : trials) {
    SCOPED_TRACE(testing::Message() << trial.world << " ranks, stage " << trial.placement.zero_stage
                                    << ", shards of " << trial.placement.shard_size);
    const auto result = run(trial);
    for (int step = 0; step < trial.steps; ++step) {
      for (const auto& rank : result) {
        EXPECT_LT(distance(rank[step], golden[step].get<Weights>()),
                  testing_support::fp32_bound(GetParam().bound))
            << step;
        EXPECT_EQ(rank[step], result[0][step]) << "all ranks hold the same bits";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryOptimizer, testing::ValuesIn(optimizers()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Optimizer, NamedParametersHaveRatesOfTheirOwn) {
  OptimizerSettings settings{.kind = SgdSettings{.weight_decay = 0.5}};
  settings.rates = {{"wide", 0.0}, {"norm", 0.25}};
  testing_support::on_ranks(1, [&](std::shared_ptr<Communicator> comm) {
    Rank rank({settings}, comm);
    EXPECT_THAT(rank.optimizer->base_rates(), testing::ElementsAre(kLr, 0.0, 0.25));
    const Weights before = rank.weights();
    rank.step(0);
    const Weights after = rank.weights();
    EXPECT_EQ(after[1], before[1]);
    const auto expect_step = [&](size_t param, double lr, double decay) {
      const double g = std::cos(0.0) + 0.25 * before[param][0];
      EXPECT_NEAR(after[param][0], before[param][0] - lr * (g + decay * before[param][0]), 1e-6);
    };
    expect_step(0, kLr, 0.5);
    expect_step(2, kLr, 0.5);
    expect_step(3, kLr, 0.5);
    expect_step(4, 0.25, 0.0);
    expect_step(5, kLr, 0.0);
  });
}

TEST(Optimizer, NormsAndBiasesDecayOnlyWhenAskedToAndMatricesAlways) {
  for (const bool all : {false, true}) {
    OptimizerConfig config{.type = "sgd", .weight_decay = 0.5};
    config.decay_all = all;
    testing_support::on_ranks(1, [&](std::shared_ptr<Communicator> comm) {
      Rank rank({optimizer_settings(config)}, comm);
      const Weights before = rank.weights();
      rank.step(0);
      const Weights after = rank.weights();
      for (const size_t param : {0, 2, 4, 5}) {  // two matrices, a norm, a bias
        const double value = before[param][0];
        const double decay = param < 4 || all ? 0.5 * value : 0.0;
        EXPECT_NEAR(after[param][0], value - kLr * (1.0 + 0.25 * value + decay), 1e-6) << param;
      }
    });
  }
}

TEST(Optimizer, KeepsNoStateThatItsRuleDoesNotNeed) {
  testing_support::on_ranks(1, [&](std::shared_ptr<Communicator> comm) {
    int64_t floats = 0;
    for (const OptimizerShard& shard : Rank({}, comm).store.shards()) {
      floats += shard.master.numel();
    }
    const auto bytes = [&](OptimizerSettings settings) {
      return Rank({std::move(settings)}, comm).optimizer->bytes();
    };
    EXPECT_EQ(bytes({.kind = SgdSettings{}}), 0);
    EXPECT_EQ(bytes({.kind = SgdSettings{.momentum = 0.9}}), 4 * floats);
    EXPECT_EQ(bytes({.kind = LionSettings{}}), 4 * floats);
    EXPECT_EQ(bytes({.kind = AdamSettings{}}), 8 * floats);
    // The three matrices have one state.
    EXPECT_EQ(bytes({.kind = MuonSettings{}}), 4 * (floats + 20 + 7 + 1));
  });
}

TEST(Lamb, TakesOneReductionForAllParameters) {
  testing_support::on_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    Rank rank({{.kind = LambSettings{}}, 3, {3, 3}}, comm);
    const int64_t before = rank.store.comms().reduce->counts().all_reduce.count;
    rank.step(0);
    EXPECT_EQ(rank.store.comms().reduce->counts().all_reduce.count, before + 1);
    EXPECT_EQ(rank.store.comms().reduce->counts().all_reduce.bytes, 6 * 2 * 8);
  });
}

TEST(Muon, LeavesEmbeddingsAndOutputTablesToAdamW) {
  const nlohmann::json opt{{"model_type", "opt"},
                           {"vocab_size", 40},
                           {"hidden_size", 8},
                           {"word_embed_proj_dim", 4},
                           {"num_hidden_layers", 1},
                           {"num_attention_heads", 2},
                           {"ffn_dim", 16},
                           {"max_position_embeddings", 16},
                           {"do_layer_norm_before", false},
                           {"tie_word_embeddings", false}};
  std::vector<std::string> others;
  for (const GroupSpec& group : model_groups(ModelSpec::from_hf(opt))) {
    for (const ParamSpec& param : group.params) {
      if (param.shape.size() == 2 && !is_muon(param)) {
        others.push_back(param.name);
      }
    }
  }
  EXPECT_THAT(others, testing::ElementsAre("embed.tokens.weight", "embed.positions.weight",
                                           "embed.project_in.weight", "head.table.weight"));
}

TEST(Muon, SendsEachMatrixThereAndBackInSixteenBits) {
  testing_support::on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    Rank rank({{.kind = MuonSettings{}}, 2, {3, 2}}, comm);
    rank.step(0);
    const auto& sent = rank.store.comms().reduce->counts().all_to_all;
    EXPECT_EQ(sent.count, 2);
    const int64_t numel = 21 + 36 + 36;
    EXPECT_GE(sent.bytes, 2 * numel * 2);
    EXPECT_LE(sent.bytes, 2 * (2 * numel) * 2);  // no more than if all went to everybody
  });
}

TEST(Muon, OwnersShareTheWork) {
  std::vector<CutMatrix> matrices;
  for (int i = 0; i < 24; ++i) {
    const int64_t rows = i % 3 == 0 ? 64 : 16;
    CutMatrix matrix{rows, 64, 0, {}, std::vector<Extent>(4)};
    matrix.held[i % 4] = {0, rows * 64};
    matrices.push_back(matrix);
  }
  const std::vector<int> owners = balanced_owners(matrices, 4);
  std::vector<int> large(4), small(4);
  for (size_t i = 0; i < matrices.size(); ++i) {
    ++(matrices[i].rows == 64 ? large : small)[owners[i]];
  }
  EXPECT_THAT(large, testing::ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(small, testing::ElementsAre(4, 4, 4, 4));
}

TEST(NewtonSchulz, MakesRowsOrColumnsNearlyOrthogonal) {
  at::manual_seed(3);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{8, 20}, {20, 8}, {12, 12}}) {
    const at::Tensor matrix = at::randn(shape).to(at::kBFloat16);
    const at::Tensor result = newton_schulz(matrix, 5);
    ASSERT_EQ(result.sizes(), matrix.sizes());
    const at::Tensor values = std::get<1>(at::linalg_svd(result.to(at::kDouble), false));
    EXPECT_LT(values.max().item<double>(), 1.25);
    EXPECT_GT(values.max().item<double>(), 0.65);
  }
  EXPECT_EQ(newton_schulz(at::zeros({4, 6}, at::kBFloat16), 5).abs().max().item<float>(), 0.0f);
}

}  // namespace
}  // namespace reknit
