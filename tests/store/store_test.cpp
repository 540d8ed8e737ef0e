// The store under every placement against plain arithmetic, and its refusals.
#include "reknit/store/store.h"

#include "tests/support/toy_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>

namespace reknit {
namespace {

using namespace testing_support;
using namespace std::chrono_literals;
using testing::HasSubstr;

const ToyModel kOddSizes{{{{{8}}, {{0}}, {{24}}},
                          {{{3}, true, false}, {{5, 7}}, {{4, 0}}, {{2}, false}},
                          {{{1}}},
                          {{{6}, false}, {{11, 3}, false}},
                          {}}};

struct Case {
  int world;
  Placement placement;
  int64_t threshold = 0;
  int micro_batches = 1;
  int prefetch = 1;
};

void expect_reference(const ToyModel& model, const Case& c) {
  ToyRun run;
  run.placement = c.placement;
  run.persistence_threshold = c.threshold;
  run.micro_batches = c.micro_batches;
  run.prefetch_depth = c.prefetch;
  const auto expected = toy_reference(model, c.world, run);
  const auto ranks = run_toy(model, c.world, run);
  const double bound = fp32_bound(1e-6);
  for (int rank = 0; rank < c.world; ++rank) {
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(ranks[rank][i].sizes(), expected[i].sizes());
      EXPECT_TRUE(at::allclose(ranks[rank][i].to(at::kDouble), expected[i], bound, bound))
          << "world " << c.world << " stage " << c.placement.zero_stage << " shard "
          << c.placement.shard_size << " rank " << rank << " param " << i;
      EXPECT_TRUE(at::equal(ranks[rank][i], ranks[0][i]));
    }
  }
}

TEST(Store, EveryZeroStageAndWorldSizeTrainsAsPlainArithmetic) {
  for (const int world : {1, 2, 3, 4, 5, 8}) {
    for (const int stage : {0, 1, 2, 3}) {
      expect_reference(kOddSizes, {world, {stage, world}});
    }
  }
}

TEST(Store, ShardGroupsThatAreReplicasTrainAsPlainArithmetic) {
  for (const auto& [world, shard] : {std::pair{4, 2}, {4, 1}, {6, 3}, {6, 2}, {8, 4}}) {
    expect_reference(kOddSizes, {world, {3, shard}, 0, 3});
  }
}

TEST(Store, PersistentParametersAccumulationAndPrefetchChangeNothing) {
  for (const int64_t threshold : {4, 20, 1000}) {
    expect_reference(kOddSizes, {3, {3, 3}, threshold, 2, 0});
    expect_reference(kOddSizes, {4, {3, 4}, threshold, 2, 3});
  }
}

// A store of three groups of one parameter each on `world` ranks.
void with_store(int world, const std::function<void(Store&)>& body, Placement placement = {},
                std::vector<GroupId> order = {}, const FaultPlan& faults = {},
                std::chrono::milliseconds timeout = patience()) {
  const ToyModel model{{{{{8, 8}}}, {{{16}}}, {{{24}}}}};
  placement.shard_size = world;
  const auto on_rank = [&](std::shared_ptr<Communicator> comm) {
    SlotPool pool(rank_memory);
    Store store({.name = "toy", .placement = placement, .allocator = {}},
                StoreComms::over(comm, world), pool);
    for (size_t g = 0; g < model.groups.size(); ++g) {
      store.add(model.spec(g));
    }
    if (!order.empty()) {
      store.set_order(order);
    }
    store.seal();
    pool.seal();
    load_toy(store, model);
    body(store);
  };
  on_ranks(world, on_rank, timeout, faults);
}

template <class Body>
std::string state_error(const Body& body) {
  try {
    body();
  } catch (const StateError& error) {
    return error.what();
  }
  return "no StateError";
}

TEST(Store, AViewThatOutlivesItsLeaseThrowsAndNamesEverything) {
  with_store(2, [](Store& store) {
    ParamView view;
    {
      const Full weights = store.full(0, Phase::kForward);
      view = weights[0];
      EXPECT_EQ(view.read().numel(), 64);
    }
    const std::string text = state_error([&] { view.read(); });
    for (const char* part : {"g0.p0", "Sharded", "train-forward", "version 1", "rank"}) {
      EXPECT_THAT(text, HasSubstr(part));
    }
    store.finish_pass();
  });
}

TEST(Store, AViewOfAnOlderLeaseThrowsEvenIfTheGroupIsFullAgain) {
  with_store(2, [](Store& store) {
    ParamView old;
    {
      const Full weights = store.full(1, Phase::kForward);
      old = weights[0];
    }
    {
      const Full again = store.full(1, Phase::kForward);
      EXPECT_THAT(state_error([&] { old.read(); }), HasSubstr("after its lease had ended"));
    }
    store.finish_pass();
  });
}

TEST(Store, UpdatesWhileLeasedOrPinnedAreRefused) {
  with_store(2, [](Store& store) {
    store.pin();
    EXPECT_THAT(state_error([&] { store.begin_update(); }), HasSubstr("pinned for generation"));
    store.unpin();
    EXPECT_THAT(state_error([&] { store.begin_update(); }), HasSubstr("cannot update from"));
  });
}

TEST(Store, DroppedGradientsPoisonTheGroupOnEveryRank) {
  EXPECT_THAT(state_error([] {
                with_store(2, [](Store& store) {
                  { const Gradients grads = store.gradients(1); }
                  store.full(1, Phase::kForward);
                });
              }),
              HasSubstr("dropped without reduce()"));
}

void expect_poisoned(Store& store, const std::string& reason) {
  EXPECT_THAT(state_error([&] { store.full(0, Phase::kForward); }), HasSubstr(reason));
  EXPECT_THAT(state_error([&] { store.full(2, Phase::kForward); }), HasSubstr(reason));
  EXPECT_THAT(state_error([&] { static_cast<void>(store.gradients(0)); }), HasSubstr(reason));
  EXPECT_THAT(state_error([&] { store.pin(); }), HasSubstr(reason));
}

TEST(Store, AGatherThatFailsPoisonsTheStoreOnEveryRank) {
  for (const bool at_the_start : {true, false}) {
    const FaultPlan plan = [&](CommKind kind, int64_t, int rank) {
      const bool here = kind == CommKind::kAllGather && rank == 1;
      return Fault{.fail = here && at_the_start, .never_join = here && !at_the_start};
    };
    std::barrier<> made(2);  // else the other rank could hear of the end while it is set up
    const auto body = [&](Store& store) {
      made.arrive_and_wait();
      EXPECT_THROW(store.full(0, Phase::kForward), CommError);
      expect_poisoned(store, at_the_start ? "as planned" : "ranks missing: 1");
    };
    with_store(2, body, {}, {}, plan, at_the_start ? patience() : 1s);
  }
}

TEST(Store, APinThatFailsPoisonsTheStoreOnEveryRank) {
  const FaultPlan plan = [](CommKind kind, int64_t index, int rank) {
    return Fault{.fail = kind == CommKind::kAllGather && index == 1 && rank == 1};
  };
  std::barrier<> made(2);
  const auto body = [&](Store& store) {
    made.arrive_and_wait();
    EXPECT_THROW(store.pin(), CommError);
    expect_poisoned(store, "as planned");
  };
  with_store(2, body, {}, {}, plan);
}

TEST(Store, AReductionThatFailsPoisonsTheStoreOnEveryRank) {
  const FaultPlan plan = [](CommKind kind, int64_t, int rank) {
    return Fault{.fail = kind == CommKind::kReduceScatter && rank == 1};
  };
  std::barrier<> made(2);
  const auto body = [&](Store& store) {
    made.arrive_and_wait();
    const auto one_pass = [&] {
      store.reduce(store.gradients(0));
      store.finish_pass();
    };
    EXPECT_THROW(one_pass(), CommError);
    expect_poisoned(store, "as planned");
  };
  with_store(2, body, {}, {}, plan);
}

TEST(Store, ABoundaryThatFailsPoisonsTheStoreOnEveryRank) {
  const FaultPlan plan = [](CommKind kind, int64_t, int rank) {
    const bool sum = kind == CommKind::kAllReduce || kind == CommKind::kReduceScatter;
    return Fault{.fail = sum && rank == 1};
  };
  for (const int stage : {0, 1}) {
    std::barrier<> made(2);
    const auto body = [&](Store& store) {
      for (const GroupId group : {0, 1, 2}) {
        store.reduce(store.gradients(group));
      }
      made.arrive_and_wait();
      EXPECT_THROW(store.finish_gradients(), CommError);
      expect_poisoned(store, "as planned");
    };
    with_store(2, body, {.zero_stage = stage}, {}, plan);
  }
}

TEST(Store, AnEditThatFailsPoisonsTheStoreOnEveryRank) {
  const FaultPlan plan = [](CommKind kind, int64_t, int rank) {
    return Fault{.fail = kind == CommKind::kBroadcast && rank == 1};
  };
  std::barrier<> made(2);
  const auto body = [&](Store& store) {
    Edit edit = store.edit(0, 0, 0);
    made.arrive_and_wait();
    EXPECT_THROW(std::move(edit).commit(), CommError);
    expect_poisoned(store, "as planned");
  };
  with_store(2, body, {}, {}, plan);
}

TEST(Store, EditsTakeTheOwnersCopyOnAllRanks) {
  with_store(3, [](Store& store) {
    Edit edit = store.edit(0, 0, 1);
    edit.value().view({8, 8})[0].fill_(static_cast<double>(this_rank().rank));
    std::move(edit).commit();
    const at::Tensor value = store.read_full(0, 0).cpu();
    EXPECT_TRUE(at::equal(value[0], at::ones({8})));
    EXPECT_EQ(store.state(0).version(), 2u);
  });
}

TEST(Store, AnEditDroppedWithoutCommitIsAnErrorThatNamesTheParameter) {
  EXPECT_THAT(state_error([] {
                with_store(2, [](Store& store) {
                  { Edit edit = store.edit(0, 0, 0); }
                  store.full(0, Phase::kForward);
                });
              }),
              HasSubstr("g0.p0"));
}

TEST(Store, UnusedPrefetchesAreReleasedWhenThePassTakesAnotherBranch) {
  with_store(2, [](Store& store) {
    for (const bool branch : {true, true, false, true, false, false, true}) {
      for (const GroupId g : branch ? std::vector<GroupId>{0, 1, 2} : std::vector<GroupId>{0, 2}) {
        const Full weights = store.full(g, Phase::kForward);
        weights[0].read();
      }
      store.finish_pass();
      for (GroupId g = 0; g < 3; ++g) {
        EXPECT_EQ(store.state(g).weights(), WeightState::kSharded);
      }
    }
  });
}

TEST(Store, AKeptGroupIsGatheredOnceAPass) {
  with_store(2,
             [](Store& store) {
               const int64_t before = store.comms().gather->counts().all_gather.count;
               for (int token = 0; token < 5; ++token) {
                 for (const GroupId g : {0, 1, 2, 0}) {
                   const Full weights = store.full(g, Phase::kGenerate);
                   weights[0].read();
                 }
               }
               store.finish_pass();
               // Group 0 once; groups 1 and 2 once a token, and one prefetch that nobody used.
               EXPECT_LE(store.comms().gather->counts().all_gather.count - before, 1 + 5 * 2 + 1);
             },
             {}, {0, 1, 2, 0});
}

TEST(Store, PinnedReadsNeedNoCommunicationAndKeepTheirAddresses) {
  with_store(4, [](Store& store) {
    const void* address = nullptr;
    for (int round = 0; round < 2; ++round) {
      store.pin();
      const int64_t before = store.comms().gather->counts().all_gather.count;
      for (int token = 0; token < 3; ++token) {
        for (GroupId g = 0; g < 3; ++g) {
          const Full weights = store.full(g, Phase::kGenerate);
          const void* here = weights[0].read().data_ptr();
          if (g == 2) {
            EXPECT_TRUE(address == nullptr || address == here);
            address = here;
          }
        }
      }
      EXPECT_EQ(store.comms().gather->counts().all_gather.count, before);
      store.unpin();
    }
  });
}

TEST(Store, ShardsAreBitIdenticalAfterPinningAndBack) {
  with_store(3, [](Store& store) {
    std::vector<at::Tensor> before;
    for (const OptimizerShard& shard : store.shards()) {
      before.push_back(shard.weight.clone());
    }
    store.pin();
    store.unpin();
    const auto after = store.shards();
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(at::equal(before[i], after[i].weight));
    }
  });
}

TEST(Store, MixedDtypesKeepTheirBitsThroughAGather) {
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    SlotPool pool(rank_memory);
    Store store({.name = "mixed", .placement = {3, 2}, .allocator = {}}, StoreComms::over(comm, 2),
                pool);
    GroupSpec spec{"mixed", {}};
    spec.params.push_back({.name = "a", .shape = {6}});
    spec.params.push_back({.name = "b", .shape = {10}, .dtype = at::kBFloat16});
    spec.params.push_back({.name = "c", .shape = {2}});
    spec.params.push_back({.name = "d", .shape = {16}, .trainable = false, .dtype = at::kByte});
    store.add(spec);
    store.seal();
    pool.seal();
    std::vector<at::Tensor> values = {
        at::arange(6, at::kFloat) / 7, (at::arange(10, at::kFloat) / 3).to(at::kBFloat16),
        at::arange(2, at::kFloat) - 0.1, at::arange(16, at::kByte) * 15};
    for (int p = 0; p < 4; ++p) {
      store.write(0, p, 0, values[p]);
    }
    const Full weights = store.full(0, Phase::kForward);
    for (size_t p = 0; p < 4; ++p) {
      EXPECT_EQ(weights[p].read().scalar_type(), values[p].scalar_type());
      EXPECT_TRUE(at::equal(weights[p].read().cpu(), values[p]));
    }
  });
}

}  // namespace
}  // namespace reknit
