// What to change so that a plan fits.
#include "reknit/engine/plan.h"

#include <algorithm>
#include <functional>

namespace reknit {
namespace {

using Change = std::function<std::optional<std::string>(PlanRequest&)>;

std::optional<std::string> recompute(PlanRequest& request) {
  bool changed = false;
  for (PlannedModel& model : request.models) {
    if (model.store.training && recomputed_share(model.spec, model.checkpointing) < 1) {
      model.checkpointing = Checkpointing::kFull;
      changed = true;
    }
  }
  return changed ? std::make_optional<std::string>(
                       "recompute activations "
                       "(--gradient-checkpointing)")
                 : std::nullopt;
}

std::optional<std::string> unpin(PlanRequest& request) {
  if (!request.generation || request.generation->hybrid.mode != GatherMode::kPinned) {
    return std::nullopt;
  }
  request.generation->hybrid.mode = GatherMode::kLayerwise;
  return "generate layer by layer (hybrid_engine.pin_parameters false); slower";
}

/// The same global batch in smaller pieces.
std::optional<std::string> smaller_micro_batch(PlanRequest& request, int64_t limit) {
  const int64_t before = request.batch.sequences;
  while (request.batch.sequences > 1 && plan_memory(request).total() > limit) {
    request.micro_batches *= 2;
    request.batch.sequences = (request.batch.sequences + 1) / 2;
  }
  if (request.batch.sequences == before) {
    return std::nullopt;
  }
  return str("micro-batch ", request.batch.sequences, " instead of ", before, ", with ",
             request.micro_batches, " micro-steps");
}

std::optional<std::string> shorter_generation(PlanRequest& request, int64_t limit) {
  if (!request.generation) {
    return std::nullopt;
  }
  int64_t& sequences = request.generation->sequences;
  const int64_t before = sequences;
  while (sequences > 1 && plan_memory(request).total() > limit) {
    sequences = (sequences + 1) / 2;
  }
  return sequences == before
             ? std::nullopt
             : std::make_optional(str("generate ", sequences, " answers at a time instead of ",
                                      before, " (--generation-batch)"));
}

std::optional<std::string> shard_everything(PlanRequest& request) {
  const Placement wanted{3, request.topology.ranks};
  bool changed = false;
  for (PlannedModel& model : request.models) {
    changed = changed || model.store.placement.zero_stage != 3 ||
              model.store.placement.shard_size != wanted.shard_size;
    model.store.placement = wanted;
  }
  if (!changed || request.topology.ranks == 1) {
    return std::nullopt;
  }
  return str("ZeRO-3 over all ", request.topology.ranks, " ranks");
}

std::optional<std::string> more_ranks(PlanRequest& request, int64_t limit) {
  const int before = request.topology.ranks;
  const int per_node = request.topology.per_node();
  constexpr int kMost = 4096;
  while (request.topology.ranks * 2 <= kMost && plan_memory(request).total() > limit) {
    request.topology.ranks *= 2;
    request.topology.nodes =
        request.topology.nodes > 1 ? request.topology.ranks / per_node : request.topology.nodes;
    for (PlannedModel& model : request.models) {
      model.store.placement = {3, request.topology.ranks};
    }
  }
  return str(request.topology.ranks, " ranks instead of ", before, ", ZeRO-3 over all of them");
}

void shard(PlanRequest& request, const Placement& placement) {
  for (PlannedModel& model : request.models) {
    model.store.placement = placement;
  }
}

std::string describe(const Placement& placement, int ranks) {
  return placement.zero_stage == 3 && placement.shard_size < ranks
             ? str("MiCS, groups of ", placement.shard_size,
                   placement.hierarchical ? ", hierarchical" : "")
             : str("ZeRO-", placement.zero_stage);
}

std::vector<Placement> placements(const Topology& topology) {
  std::vector<Placement> all;
  for (const int stage : {0, 1, 2, 3}) {
    all.push_back({stage, topology.ranks});
  }
  for (int size = 1; size < topology.ranks; ++size) {
    const int per_node = topology.per_node();
    if (topology.ranks % size == 0 && (size % per_node == 0 || per_node % size == 0)) {
      all.push_back({3, size, /*hierarchical=*/size > per_node});
    }
  }
  return all;
}

}  // namespace

std::vector<PlanOption> options_that_fit(const PlanRequest& request, int64_t limit) {
  const std::vector<Change> changes = {
      shard_everything,
      recompute,
      [limit](PlanRequest& r) { return smaller_micro_batch(r, limit); },
      [limit](PlanRequest& r) { return shorter_generation(r, limit); },
      unpin,
      [limit](PlanRequest& r) { return more_ranks(r, limit); },
  };
  std::vector<PlanOption> fitting;
  PlanRequest together = request;
  std::string all;
  for (const Change& change : changes) {
    PlanRequest changed = request;
    if (const auto text = change(changed)) {
      const MemoryPlan memory = plan_memory(changed);
      if (memory.total() <= limit) {
        fitting.push_back({*text, changed, memory});
      }
    }
    if (plan_memory(together).total() > limit) {
      if (const auto text = change(together)) {
        all += str(all.empty() ? "" : "; ", *text);
      }
    }
  }
  const MemoryPlan memory = plan_memory(together);
  if (fitting.empty() && memory.total() <= limit) {
    fitting.push_back({all, together, memory});
  }
  return fitting;
}

std::vector<PlanOption> sweep(const PlanRequest& request, const Hardware& hardware) {
  std::vector<std::pair<double, PlanOption>> found;
  for (const Placement& placement : placements(request.topology)) {
    for (const Checkpointing checkpointing : {Checkpointing::kNone, Checkpointing::kFull}) {
      for (int64_t micro = 1; micro <= 256; micro *= 2) {
        PlanOption option{{}, request, {}};
        shard(option.request, placement);
        option.request.batch.sequences = micro;
        for (PlannedModel& model : option.request.models) {
          model.checkpointing = checkpointing;
        }
        option.memory = plan_memory(option.request);
        if (option.memory.total() > hardware.memory) {
          break;
        }
        option.change = str(describe(placement, request.topology.ranks), ", micro-batch ", micro,
                            checkpointing.every > 0 ? ", recomputing" : "");
        const auto tokens =
            static_cast<double>(option.request.batch.tokens() * option.request.micro_batches);
        found.emplace_back(tokens / plan_time(option.request, hardware).train(), option);
      }
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<PlanOption> options;
  for (auto& [rate, option] : found) {
    options.push_back(std::move(option));
  }
  return options;
}

}  // namespace reknit
