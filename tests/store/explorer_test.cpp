// The real store in every completion order, and the planted mutants that prove that the
// explorer would notice.
#include "tests/store/explorer.h"

#include "tests/store/explorer_model.h"

#include "reknit/base/error.h"
#include "reknit/base/mutant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace reknit {
namespace {

std::set<std::string> active_mutants;

}  // namespace

bool mutant_active(const char* name) {
  return active_mutants.count(name) > 0;
}

namespace explorer {
namespace {

struct Scenario {
  Case c;
  Program program;
};

// Steps with accumulation, so that gradient slots and shards are used again and again.
void train(Model& model, int steps, int micro_batches) {
  for (int step = 0; step < steps; ++step) {
    for (int micro = 0; micro < micro_batches; ++micro) {
      model.forward();
      model.backward();
    }
    model.step();
  }
  model.evaluate();
}

void require_refused(const std::string& what, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error&) {
    return;
  }
  throw StateError(what + " was not refused");
}

const std::vector<std::vector<int64_t>> kFour{{40, 3}, {70}, {33}, {64}};
const std::vector<std::vector<int64_t>> kOneClass{{64}, {64}, {64}, {64}};

std::vector<Scenario> training_cases() {
  std::vector<Scenario> scenarios;
  const auto add = [&](Case c, int steps, int micro_batches) {
    scenarios.push_back({std::move(c), [=](Model& model) { train(model, steps, micro_batches); }});
  };
  for (const int depth : {0, 1, 2}) {
    add({.name = str("one rank, depth ", depth), .world = 1, .placement = {3, 1}, .depth = depth},
        2, 2);
    add({.name = str("two ranks, depth ", depth), .depth = depth}, 2, 2);
    add({.name = str("slots of one class, depth ", depth), .depth = depth, .groups = kOneClass}, 2,
        2);
    add({.name = str("tied ends, depth ", depth), .depth = depth, .order = {0, 1, 2, 0}}, 2, 2);
  }
  for (const int stage : {0, 1, 2}) {
    add({.name = str("ZeRO-", stage), .placement = {stage, 2}}, 2, 2);
  }
  add({.name = "shard groups that are replicas", .world = 4, .placement = {3, 2}}, 2, 1);
  for (const int depth : {0, 1}) {
    add({.name = str("two-stage gathers, depth ", depth),
         .world = 4,
         .placement = {3, 4, true},
         .depth = depth,
         .groups = {{70}, {40, 3}, {130}},
         .persistence_threshold = 10,
         .nodes = 2},
        2, 1);
  }
  for (const int depth : {0, 1, 2}) {
    add({.name = str("second copies, depth ", depth),
         .world = 4,
         .placement = {3, 4, false, 2},
         .depth = depth,
         .groups = kOneClass,
         .nodes = 2},
        2, 2);
  }
  add({.name = "waiting at once", .groups = kOneClass, .overlap = false}, 2, 2);
  add({.name = "persistent parameters", .groups = kFour, .persistence_threshold = 40}, 2, 2);
  add({.name = "an empty group", .groups = {{40}, {}, {33, 0}}}, 2, 1);
  return scenarios;
}

void add_generation(std::vector<Scenario>& scenarios) {
  for (const int depth : {0, 1, 2}) {
    scenarios.push_back({{.name = str("layerwise generation between steps, depth ", depth),
                          .depth = depth,
                          .groups = kOneClass},
                         [](Model& model) {
                           model.generate(2);
                           train(model, 1, 1);
                           model.generate(2);
                         }});
    scenarios.push_back(
        {{.name = str("pinned generation between steps, depth ", depth), .depth = depth},
         [](Model& model) {
           for (int round = 0; round < 3; ++round) {
             model.store().pin();
             model.generate(2);
             model.store().unpin();
             if (round < 2) {
               train(model, 1, 1);
             }
           }
         }});
  }
}

std::vector<Scenario> second_copies() {
  std::vector<Scenario> scenarios;
  scenarios.push_back({{.name = "second copies, loaded anew",
                        .world = 4,
                        .placement = {3, 4, false, 2},
                        .nodes = 2},
                       [](Model& model) {
                         model.evaluate();
                         model.load_again();
                         train(model, 1, 1);
                       }});
  return scenarios;
}

std::vector<Scenario> phase_cases() {
  std::vector<Scenario> scenarios;
  add_generation(scenarios);
  scenarios.push_back({{.name = "pinned twice without a step"}, [](Model& model) {
                         for (int round = 0; round < 2; ++round) {
                           model.store().pin();
                           model.generate(1);
                           model.store().unpin();
                         }
                         model.store().release_pinned_memory();
                         model.store().pin();
                         model.generate(1);
                         model.store().unpin();
                       }});
  scenarios.push_back({{.name = "a skipped step"}, [](Model& model) {
                         model.forward();
                         model.backward();
                         model.skip_step();
                         train(model, 1, 2);
                       }});
  scenarios.push_back({{.name = "edits, loading and reading back", .depth = 2}, [](Model& model) {
                         model.edit(0, 0, 1);
                         train(model, 1, 1);
                         model.edit(1, 0, 0);
                         model.load();
                         model.generate(1);
                         train(model, 1, 1);
                       }});
  for (const int stage : {1, 3}) {
    scenarios.push_back(
        {{.name = str("swapped masters, ZeRO-", stage), .placement = {stage, 2}}, [](Model& model) {
           train(model, 1, 1);
           model.swap_twice();
           train(model, 1, 1);
         }});
  }
  scenarios.push_back(
      {{.name = "overlapping leases", .depth = 0, .groups = kOneClass}, [](Model& model) {
         model.overlapping_leases();
         model.evaluate();
       }});
  scenarios.push_back(
      {{.name = "a tied group is gathered once a step", .depth = 0, .order = {0, 1, 2, 0}},
       [](Model& model) {
         const int64_t before = model.gathers();
         model.forward();
         model.backward();
         model.step();
         if (model.gathers() - before != 5) {
           throw StateError(str(model.gathers() - before, " gathers instead of 5"));
         }
       }});
  return scenarios;
}

// Programs that are wrong: the store must say so.
std::vector<Scenario> refusals() {
  return {{{.name = "a view read after its lease"},
           [](Model& model) {
             ParamView view;
             {
               const Full weights = model.store().full(0, Phase::kForward);
               view = weights[0];
             }
             require_refused("a read after the lease", [&] { view.read(); });
             model.store().finish_pass();
           }},
          {{.name = "an update under a reader", .placement = {0, 2}}, [](Model& model) {
             model.forward();
             model.backward();
             const Full weights = model.store().full(0, Phase::kForward);
             require_refused("an update under a reader", [&] { model.step(); });
           }}};
}

std::vector<Scenario> all_cases() {
  std::vector<Scenario> all = training_cases();
  for (auto more : {phase_cases(), second_copies(), refusals()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

/// What is wrong with a scenario, in whichever way it shows; empty if nothing is.
std::string find_violation(const Scenario& scenario) {
  try {
    const auto recorder = record(scenario.c, scenario.program);
    const Explorer explorer(recorder->trace());
    return explorer.explore_reduced().violation.value_or(recorder->complaint());
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }
}

TEST(Explorer, EveryOrderOfTheSmallCasesIsRight) {
  for (const Scenario& scenario : all_cases()) {
    EXPECT_EQ(find_violation(scenario), "") << scenario.c.name;
  }
}

TEST(Explorer, OperationsOfTheStoreNeverTouchTheSameMemoryWithoutAnOrder) {
  for (const Scenario& scenario : all_cases()) {
    const auto recorder = record(scenario.c, scenario.program);
    const Explorer explorer(recorder->trace());
    for (const auto& [a, b] : explorer.races()) {
      const auto& nodes = recorder->trace().nodes();
      ADD_FAILURE() << scenario.c.name << ": " << nodes[a].label << " of rank " << nodes[a].rank
                    << " and " << nodes[b].label << " of rank " << nodes[b].rank;
    }
  }
}

TEST(Explorer, EveryReachableStateOfTheTiniestCasesIsRightWithoutAnyReduction) {
  const std::vector<Scenario> tiny = {
      {{.name = "one rank", .world = 1, .placement = {3, 1}, .groups = {{32}, {32}}},
       [](Model& model) { train(model, 1, 1); }},
      {{.name = "forward on two ranks", .groups = {{32}, {32}}},
       [](Model& model) { model.evaluate(); }},
      {{.name = "a step on two ranks", .depth = 0, .groups = {{32}}},
       [](Model& model) { train(model, 1, 1); }},
  };
  for (const Scenario& scenario : tiny) {
    const auto recorder = record(scenario.c, scenario.program);
    const Result result = Explorer(recorder->trace()).explore_all(3'000'000);
    EXPECT_FALSE(result.violation) << scenario.c.name << ": " << *result.violation;
    EXPECT_GT(result.explored, 20);
    std::cout << "  " << scenario.c.name << ": " << result.explored << " states\n";
  }
}

TEST(Explorer, ALargerCaseIsRightInAHundredThousandRandomOrders) {
  const Case c{.name = "four ranks, two replicas, tied, persistent",
               .world = 4,
               .placement = {3, 2},
               .depth = 2,
               .groups = {{70}, {40, 3}, {40, 3}, {64}},
               .order = {0, 1, 2, 3, 0},
               .persistence_threshold = 10};
  const auto recorder = record(c, [](Model& model) {
    model.store().pin();
    model.generate(1);
    model.store().unpin();
    train(model, 1, 2);
    model.generate(1);
  });
  const Result result = Explorer(recorder->trace()).explore_random(100'000, 1);
  EXPECT_FALSE(result.violation) << *result.violation;
}

// Some take away one of two defences; they show only together with the fault that the
// defence is there for.
const std::vector<std::vector<std::string>> kMutants = {
    {"forget_release_event"},
    {"gather_before_slot_release"},
    {"gather_before_weights_written"},
    {"read_before_gather_is_done"},
    {"lease_while_gathering"},
    {"lease_while_gathering", "lease_without_state_check"},
    {"release_kept_groups"},
    {"release_with_a_reader_left"},
    {"release_with_a_reader_left", "shard_without_reader_check"},
    {"release_before_readers_end"},
    {"drain_forgets_gathers"},
    {"drain_forgets_kept_groups"},
    {"drain_forgets_kept_groups", "raise_version_of_full_copies"},
    {"drain_forgets_kept_groups", "raise_version_of_full_copies", "lease_without_state_check"},
    {"drain_forgets_kept_groups", "raise_version_of_full_copies", "lease_without_state_check",
     "skip_version_check"},
    {"raise_version_of_full_copies"},
    {"prefetch_on_rank_0_only"},
    {"pin_before_readers_end"},
    {"zero_before_slot_release"},
    {"forget_zeroing"},
    {"reduce_before_backward_wrote"},
    {"accumulate_before_reduced"},
    {"accumulate_twice"},
    {"reuse_gradients_before_reduced"},
    {"update_before_reductions_end"},
    {"forget_replicas"},
    {"forget_to_raise_version"},
    {"forget_weights_written"},
    {"forget_to_clear_gradients"},
    {"forget_replicated_weights"},
    {"write_unseen_by_gathers"},
    {"gather_before_secondary_written"},
    {"secondary_of_any_version"},
    {"secondary_outlives_a_write"},
    {"second_stage_does_not_wait"},
    {"number_shards_by_rank"},
    {"second_stage_sends_another_slice"},
};

TEST(Explorer, FindsEveryPlantedMutant) {
  const auto scenarios = all_cases();
  for (const auto& mutants : kMutants) {
    active_mutants = {mutants.begin(), mutants.end()};
    std::string found;
    for (const Scenario& scenario : scenarios) {
      found = find_violation(scenario);
      if (!found.empty()) {
        found = str(scenario.c.name, ": ", found);
        break;
      }
    }
    std::string names;
    for (const std::string& name : mutants) {
      names += str(names.empty() ? "" : " + ", name);
    }
    EXPECT_FALSE(found.empty()) << names << " was not found";
    std::cout << "  " << names << "\n    " << found << "\n";
  }
  active_mutants.clear();
}

TEST(Explorer, SeesARankThatNeverJoinsAndRanksThatWaitInACircle) {
  Recorder recorder(2);
  recorder.join("gather", {0, 1}, 0, 0, {.kind = CommKind::kBarrier}, {});
  EXPECT_THROW(recorder.finish(), StateError);

  Trace trace;
  trace.add({0, "a", {}, {}, {1}});
  trace.add({1, "b", {}, {}, {0}});
  EXPECT_THROW(Explorer{trace}, StateError);
}

}  // namespace
}  // namespace explorer
}  // namespace reknit
