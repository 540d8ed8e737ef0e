#include "reknit/engine/plan.h"

#include "reknit/engine/cache_tokens.h"
#include "reknit/models/groups.h"

#include <algorithm>

namespace reknit {
namespace {

/// The groups of a model as its store lays them out.
struct PlannedStore {
  std::vector<GroupSpec> groups;
  std::vector<GroupLayout> layouts;
  std::vector<GroupSizes> sizes;
  std::vector<bool> kept;

  explicit PlannedStore(const PlannedModel& model) : groups(model_groups(model.spec)) {
    const StoreSettings& settings = model.store;
    for (GroupSpec& group : groups) {
      for (ParamSpec& param : group.params) {
        param.trainable = param.trainable && settings.training;
      }
    }
    layouts = lay_out(groups, layout_rules(settings));
    for (const GroupLayout& layout : layouts) {
      sizes.push_back(GroupSizes::of(layout, settings.placement, settings.reduce_dtype));
    }
    kept = kept_groups(Decoder(model.spec).forward_order(), layouts.size());
  }
};

/// Elements of states on the rank that has most of them. What every parameter has lies beside
/// the whole shard; the rest, packed, by parameter.
int64_t state_numel(const PlannedModel& model, const PlannedStore& store) {
  const int common = common_states(model.optimizer);
  const int shards = model.store.placement.optimizer_shards();
  int64_t whole = 0;
  std::vector<int64_t> packed(shards, 0);
  for (size_t g = 0; g < store.layouts.size(); ++g) {
    const GroupLayout& layout = store.layouts[g];
    for (size_t i = 0; i < layout.segments.size(); ++i) {
      const int64_t length = store.sizes[g].segments[i].optimizer_numel;
      whole += length * common;
      for (const int p : layout.segments[i].params) {
        const int more = states_of(model.optimizer, store.groups[g].params[p]) - common;
        const ParamPlace& place = layout.places[p];
        const Extent held{place.offset, place.offset + place.numel};
        for (int64_t r = length == 0 ? shards : held.begin / length;
             more > 0 && r < shards && r * length < held.end; ++r) {
          packed[r] += more * intersect(held, {r * length, (r + 1) * length}).size();
        }
      }
    }
  }
  return whole + *std::max_element(packed.begin(), packed.end());
}

void add_shards(const PlannedModel& model, const PlannedStore& store, MemoryPlan& plan) {
  for (size_t g = 0; g < store.layouts.size(); ++g) {
    for (size_t i = 0; i < store.sizes[g].segments.size(); ++i) {
      const SegmentSizes& sizes = store.sizes[g].segments[i];
      const at::ScalarType dtype = store.layouts[g].segments[i].dtype;
      plan.weights += (sizes.weight_numel + sizes.secondary_numel) *
                      static_cast<int64_t>(c10::elementSize(dtype));
      plan.masters += sizes.own_master ? sizes.optimizer_numel * 4 : 0;
      plan.gradients += sizes.gradient_numel * 4;
      plan.moments += model.averaged ? sizes.optimizer_numel * 4 : 0;
    }
  }
  plan.moments += 4 * state_numel(model, store);
}

void add_generation(const PlanRequest& request, const PlannedStore& store, MemoryPlan& plan) {
  const PlannedGeneration& generation = *request.generation;
  const PlannedModel& model = request.models.front();
  if (generation.hybrid.mode == GatherMode::kPinned) {
    for (const GroupSizes& sizes : store.sizes) {
      plan.pinned += sizes.slot_bytes;
    }
  }
  plan.kv_cache = planned_cache(model, generation.sequences,
                                cache_tokens(generation.prompt + generation.answer, request.cuda));
}

/// Of training and generating the one that needs more; both share what lives on.
void add_activations(const PlanRequest& request, MemoryPlan& plan) {
  const auto consider = [&](const ActivationBytes& bytes) {
    if (bytes.peak() > plan.activations + plan.workspaces) {
      plan.activations = bytes.kept + bytes.transient;
      plan.workspaces = bytes.workspace;
    }
  };
  for (const PlannedModel& model : request.models) {
    if (model.store.training) {
      consider(training_activations(model.spec, request.batch, model.store.dtype,
                                    model.checkpointing, request.cuda));
    }
  }
  if (request.generation) {
    const PlannedModel& model = request.models.front();
    consider(generation_activations(model.spec,
                                    {request.generation->sequences, request.generation->prompt},
                                    model.store.dtype, request.cuda));
  }
}

}  // namespace

int64_t MemoryPlan::pools() const {
  return weights + masters + gradients + moments + slots + pinned + kv_cache;
}

int64_t MemoryPlan::total() const {
  return pools() + activations + workspaces + library;
}

MemoryPlan plan_memory(const PlanRequest& request) {
  MemoryPlan plan;
  SlotDemand slots;
  for (const PlannedModel& model : request.models) {
    const PlannedStore store(model);
    add_shards(model, store, plan);
    for (const auto& [bytes, count] :
         slot_demand(store.sizes, store.kept, model.store.prefetch_depth)) {
      slots[bytes] = std::max(slots[bytes], count);
    }
    if (request.generation && &model == &request.models.front()) {
      add_generation(request, store, plan);
    }
  }
  for (const auto& [bytes, count] : slots) {
    plan.slots += bytes * count;
  }
  add_activations(request, plan);
  if (request.cuda) {  // an estimate: context and cuBLAS; NCCL's channels
    plan.library = request.topology.ranks > 1 ? 1'600'000'000 : 800'000'000;
  }
  return plan;
}

int64_t planned_cache(const PlannedModel& model, int64_t sequences, int64_t tokens) {
  const ModelSpec& spec = model.spec;
  return 2 * spec.layers * sequences * tokens * spec.kv_heads * spec.head_dim() *
         static_cast<int64_t>(c10::elementSize(model.store.dtype));
}

StepTraffic plan_traffic(const PlanRequest& request) {
  StepTraffic all;
  for (const PlannedModel& model : request.models) {
    if (!model.store.training) {
      continue;
    }
    const PlannedStore store(model);
    all += step_traffic(
        store.layouts, store.kept,
        {model.store.placement, model.store.reduce_dtype, request.topology, request.micro_batches});
  }
  return all;
}

}  // namespace reknit
