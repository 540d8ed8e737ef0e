// What a plan says against what stores, pools and caches then take, and against what
// communicators then count.
#include "reknit/engine/plan.h"

#include "reknit/engine/runtime.h"
#include "tests/support/ppo_world.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using namespace testing_support;

struct Case {
  int world, nodes;
  Placement placement;
  at::ScalarType dtype;
  int64_t threshold = 0;
  std::optional<at::ScalarType> reduce_dtype = {};
};

std::vector<Case> cases() {
  return {{1, 1, {0, 1}, at::kFloat},
          {3, 1, {0, 3}, at::kBFloat16},
          {2, 1, {1, 2}, at::kHalf},
          {4, 2, {1, 4}, at::kFloat},
          {3, 1, {2, 3}, at::kBFloat16, 0, at::kFloat},
          {4, 1, {2, 2}, at::kBFloat16, 1000},
          {3, 1, {3, 1}, at::kFloat},
          {4, 1, {3, 4}, at::kFloat},
          {4, 2, {3, 4}, at::kBFloat16, 100},
          {4, 2, {3, 2}, at::kBFloat16, 100},
          {4, 2, {3, 4, /*hierarchical=*/true}, at::kHalf, 100},
          {4, 2, {3, 4, /*hierarchical=*/false, /*secondary_size=*/2}, at::kHalf, 0, at::kFloat}};
}

PlannedModel planned(const ModelSpec& spec, const Case& c, bool training) {
  return {.spec = spec,
          .store = {.name = "model",
                    .dtype = c.dtype,
                    .placement = c.placement,
                    .persistence_threshold = c.threshold,
                    .reduce_dtype = c.reduce_dtype,
                    .training = training,
                    .allocator = {}}};
}

PlanRequest request_of(const Case& c, std::vector<PlannedModel> models) {
  return {.models = std::move(models), .topology = {c.world, c.nodes}, .cuda = false};
}

std::string name_of(const Case& c, const std::string& model) {
  return str(model, ", ZeRO-", c.placement.zero_stage, ", ", c.world, " ranks, groups of ",
             c.placement.shard_size, c.placement.hierarchical ? ", hierarchical" : "", ", second ",
             c.placement.secondary_size, ", ", c10::toString(c.dtype), ", threshold ", c.threshold);
}

/// A model with random weights on every rank of the case.
void on_ranks_of(const Case& c, const ModelSpec& spec,
                 const std::function<void(Model&, SlotPool&)>& body) {
  const auto on_rank = [&](std::shared_ptr<Communicator> comm) {
    SlotPool pool(rank_memory);
    const auto model = make_model(spec, planned(spec, c, true).store,
                                  StoreComms::over(std::move(comm), c.placement), pool);
    pool.seal();
    init_model(*model, 1);
    body(*model, pool);
  };
  on_ranks(c.world, on_rank, std::chrono::seconds(20), {}, c.nodes);
}

ModelSpec golden_spec(const std::string& name) {
  return ModelSpec::from_hf(HfFolder((golden_folder("models") / name).string()).config());
}

/// Forwards and backwards of `micro` micro-batches and the boundary, without the norm.
void train_step(Model& model, int micro) {
  const ModelSpec& spec = model.decoder.spec();
  for (int i = 0; i < micro; ++i) {
    const auto batch = TokenBatch::of({3, 4, 5, 6}, {4}, spec, this_rank().device);
    std::shared_ptr<Saved> saved;
    const auto scored =
        model.decoder.logprobs(model.store, batch, batch.tokens, Phase::kForward, false, &saved);
    model.decoder.logprobs_backward(model.store, std::move(saved), at::ones_like(scored.logp));
  }
  model.store.finish_gradients();
  model.store.begin_update();
  model.store.end_update();
}

TEST(Plan, MemoryIsWhatStoresPoolsMomentsAndCachesThenTake) {
  if (test_device().is_cuda()) {
    GTEST_SKIP() << "the requests here are for caches of the CPU";
  }
  for (const std::string name : {"opt-350m", "bloom-4-heads"}) {
    const ModelSpec spec = golden_spec(name);
    for (const Case& c : cases()) {
      PlanRequest request = request_of(c, {planned(spec, c, true)});
      request.generation =
          PlannedGeneration{.sequences = 2, .prompt = 3, .answer = 4, .hybrid = {}};
      const MemoryPlan plan = plan_memory(request);
      on_ranks_of(c, spec, [&](Model& model, SlotPool& pool) {
        const auto optimizer = Optimizer::create(model.store, {}, 1e-3);
        const int64_t shards = model.store.shard_bytes();
        EXPECT_EQ(shards, plan.weights + plan.masters + plan.gradients) << name_of(c, name);
        EXPECT_EQ(pool.total_bytes(), plan.slots) << name_of(c, name);
        EXPECT_EQ(optimizer->bytes(), plan.moments) << name_of(c, name);
        Hybrid hybrid(model.decoder, model.store, {});
        GenerateLease lease = hybrid.enter_generation();
        lease.generate({{{3, 4, 5}, 0}, {{3}, 1}}, 2, {.max_new_tokens = 4});
        EXPECT_EQ(model.store.shard_bytes() - shards, plan.pinned) << name_of(c, name);
        EXPECT_EQ(hybrid.cache_bytes(), plan.kv_cache) << name_of(c, name);
      });
    }
  }
}

TEST(Plan, MomentsAreThoseOfTheOptimizer) {
  const std::vector<OptimizerSettings> kinds = {{AdagradSettings{}},
                                                {LambSettings{}},
                                                {LionSettings{}},
                                                {SgdSettings{}},
                                                {SgdSettings{.momentum = 0.9}},
                                                {MuonSettings{}}};
  const ModelSpec spec = golden_spec("opt-350m");
  for (const Case& c : cases()) {
    on_ranks_of(c, spec, [&](Model& model, SlotPool&) {
      for (const OptimizerSettings& kind : kinds) {
        PlannedModel trained = planned(spec, c, true);
        trained.optimizer = kind;
        const auto optimizer = Optimizer::create(model.store, kind, 1e-3);
        EXPECT_EQ(largest(*model.store.comms().world, optimizer->bytes()),
                  plan_memory(request_of(c, {trained})).moments)
            << name_of(c, optimizer->name());
      }
    });
  }
}

TEST(Plan, CollectivesOfAStepAreThoseThatCommunicatorsCount) {
  constexpr int kMicro = 3;
  for (const std::string name : {"opt-350m", "opt-untied"}) {
    const ModelSpec spec = golden_spec(name);
    for (const Case& c : cases()) {
      PlanRequest request = request_of(c, {planned(spec, c, true)});
      request.micro_batches = kMicro;
      const CommCounts::Entry plan = plan_traffic(request).total();
      on_ranks_of(c, spec, [&](Model& model, SlotPool&) {
        train_step(model, kMicro);
        const CommCounts before = model.store.comms().counts();
        train_step(model, kMicro);
        CommCounts counted = model.store.comms().counts();
        counted -= before;
        const CommCounts::Entry step = counted.total();
        EXPECT_EQ(step.count, plan.count) << name_of(c, name);
        EXPECT_EQ(step.bytes, plan.bytes) << name_of(c, name);
        EXPECT_EQ(step.inside, plan.inside) << name_of(c, name);
        EXPECT_EQ(step.across, plan.across) << name_of(c, name);
      });
    }
  }
}

TEST(Plan, ModelsThatShareAPoolTakeTurnsOnItsSlots) {
  const Case c{2, 1, {3, 2}, at::kFloat};
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    PpoWorld world(golden_folder("models") / "opt-350m", comm, {3, 2});
    std::vector<PlannedModel> models;
    int64_t shards = 0;
    for (const Model* model : world.models().all()) {
      models.push_back(planned(model->decoder.spec(), c, model->store.settings().training));
      shards += model->store.shard_bytes();
    }
    const MemoryPlan plan = plan_memory(request_of(c, models));
    EXPECT_EQ(world.pool.total_bytes(), plan.slots);
    EXPECT_EQ(shards, plan.weights + plan.masters + plan.gradients);
  });
}

ModelSpec opt_1_3b() {
  return ModelSpec::from_hf(nlohmann::json::parse(R"({"model_type": "opt", "vocab_size": 50272,
      "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192,
      "max_position_embeddings": 2048, "word_embed_proj_dim": 2048})"));
}

PlanRequest training_of(const ModelSpec& spec, int ranks, int nodes, const Placement& placement) {
  return {.models = {{.spec = spec,
                      .store = {.dtype = at::kBFloat16, .placement = placement, .allocator = {}}}},
          .topology = {ranks, nodes},
          .batch = {8, 2048}};
}

TEST(Plan, ShardedStatesFallWithTheRanksAndReplicatedOnesDoNot) {
  const ModelSpec spec = opt_1_3b();
  const auto states = [&](int ranks, Placement placement) {
    const MemoryPlan plan = plan_memory(training_of(spec, ranks, 1, placement));
    return plan.weights + plan.masters + plan.gradients + plan.moments;
  };
  const int64_t parameters = num_parameters(spec);
  EXPECT_NEAR(static_cast<double>(parameters), 1.316e9, 0.01e9);
  const auto per_element = [&](int ranks, Placement placement) {
    return static_cast<double>(states(ranks, placement)) / static_cast<double>(parameters);
  };
  EXPECT_NEAR(per_element(8, {0, 8}), 2 + 4 + 4 + 8, 0.01);
  EXPECT_NEAR(per_element(8, {1, 8}), 2 + 4 + 12.0 / 8, 0.01);
  EXPECT_NEAR(per_element(8, {2, 8}), 2 + 16.0 / 8, 0.01);
  EXPECT_NEAR(per_element(8, {3, 8}), 18.0 / 8, 0.01);
  EXPECT_NEAR(per_element(8, {3, 4}), 18.0 / 4, 0.01);
}

// 192 ranks on 24 nodes: groups inside a node gather without the network.
TEST(Plan, MicsKeepsGathersInsideItsNodes) {
  const ModelSpec spec = opt_1_3b();
  const StepTraffic whole = plan_traffic(training_of(spec, 192, 24, {3, 192}));
  const StepTraffic inside = plan_traffic(training_of(spec, 192, 24, {3, 8}));
  const StepTraffic two = plan_traffic(training_of(spec, 192, 24, {3, 16}));
  EXPECT_EQ(inside.gathers.across, 0);
  EXPECT_EQ(inside.reductions.across, 0);
  EXPECT_NEAR(static_cast<double>(inside.gathers.bytes), whole.gathers.bytes,
              0.001 * whole.gathers.bytes);  // padding
  EXPECT_NEAR(static_cast<double>(whole.gathers.inside), whole.gathers.bytes * 7.0 / 192, 1e3);
  EXPECT_NEAR(static_cast<double>(two.gathers.across), two.gathers.bytes * 8.0 / 16, 1e3);
  const StepTraffic staged = plan_traffic(training_of(spec, 192, 24, {3, 16, true}));
  EXPECT_NEAR(static_cast<double>(staged.gathers.across), two.gathers.across / 8.0, 1e3);
  EXPECT_EQ(whole.boundary.count, 0);
  EXPECT_GT(inside.boundary.across, 0);
}

TEST(Plan, WhatDoesNotFitComesWithChangesThatDo) {
  const PlanRequest request = training_of(opt_1_3b(), 2, 1, {0, 2});
  const int64_t needed = plan_memory(request).total();
  const auto options = options_that_fit(request, needed / 2);
  ASSERT_FALSE(options.empty());
  for (const PlanOption& option : options) {
    EXPECT_LE(option.memory.total(), needed / 2) << option.change;
    EXPECT_EQ(plan_memory(option.request).total(), option.memory.total()) << option.change;
  }
  EXPECT_TRUE(options_that_fit(request, 1'000'000).empty());
}

TEST(Plan, ASweepListsWhatFitsAndTheFastestFirst) {
  Hardware small = Hardware::of("a100-80g");
  small.memory = 24'000'000'000;
  const auto options = sweep(training_of(opt_1_3b(), 8, 2, {3, 8}), small);
  ASSERT_GT(options.size(), 3u);
  double last = 0;
  for (const PlanOption& option : options) {
    EXPECT_LE(option.memory.total(), small.memory) << option.change;
    const double seconds = plan_time(option.request, small).train() /
                           static_cast<double>(option.request.batch.tokens());
    EXPECT_GE(seconds, last) << option.change;
    last = seconds;
  }
}

}  // namespace
}  // namespace reknit
