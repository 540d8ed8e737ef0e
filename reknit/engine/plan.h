// What a run will take before it starts: memory of each rank by category, bytes moved and
// seconds of a training step. Pure arithmetic over the functions by which stores and models
// size themselves; nothing is allocated and no device is touched.
#pragma once

#include "reknit/engine/hybrid.h"
#include "reknit/models/activations.h"
#include "reknit/optim/optimizer.h"
#include "reknit/store/store.h"
#include "reknit/store/traffic.h"

#include <optional>
#include <string>
#include <vector>

namespace reknit {

/// One model of a rank. `store.name` names it; `store.allocator` is not used.
struct PlannedModel {
  ModelSpec spec;
  StoreSettings store;
  Checkpointing checkpointing = Checkpointing::kNone;
  OptimizerSettings optimizer = {};
  bool averaged = false;  ///< a moving average follows the masters
};

/// A generation phase of the first model.
struct PlannedGeneration {
  int64_t sequences = 1;  ///< at a time
  int64_t prompt = 1;     ///< tokens of the longest
  int64_t answer = 1;
  HybridSettings hybrid;
};

struct PlanRequest {
  std::vector<PlannedModel> models;  ///< of one rank; they share one pool of slots
  Topology topology;
  BatchShape batch;           ///< of a micro-batch
  int64_t micro_batches = 1;  ///< of a rank and step
  std::optional<PlannedGeneration> generation;
  bool cuda = true;
};

/// Bytes of one rank; every rank has the same.
struct MemoryPlan {
  int64_t weights = 0;    ///< shards, and whole where a placement replicates them
  int64_t masters = 0;    ///< fp32
  int64_t gradients = 0;  ///< fp32 shards
  int64_t moments = 0;    ///< the optimizer's states, and a moving average
  int64_t slots = 0;      ///< gathered weights and full gradients; reductions run in place there
  int64_t pinned = 0;     ///< all weights, while generating
  int64_t kv_cache = 0;
  int64_t activations = 0;
  int64_t workspaces = 0;  ///< of attention and logits
  int64_t library = 0;     ///< CUDA's context, NCCL and cuBLAS: an estimate

  /// What metrics.jsonl calls peak_bytes: memory that Reknit takes for itself.
  int64_t pools() const;
  int64_t total() const;
};
MemoryPlan plan_memory(const PlanRequest& request);

/// What a cache for `sequences` answers of `tokens` tokens takes, prompt included.
int64_t planned_cache(const PlannedModel& model, int64_t sequences, int64_t tokens);

/// Collectives of one update of every trained model.
StepTraffic plan_traffic(const PlanRequest& request);

/// Rates of one GPU and its connections, in 1 / second.
struct Hardware {
  std::string name;
  int64_t memory = 0;      ///< bytes that a process can have
  double half_flops = 0;   ///< dense products in 16 bits
  double float_flops = 0;  ///< and in fp32
  double memory_rate = 0;  ///< bytes
  double link = 0;         ///< bytes that a rank receives from its node
  double network = 0;      ///< bytes that a rank receives from other nodes

  /// "h100-80g", "h200", "a100-80g"; UsageError naming these for another.
  static Hardware of(const std::string& name);
  static std::vector<std::string> names();
};

/// Seconds of one update of every trained model: products at a share of the peak rate,
/// collectives beside them, the update. Within 40 % of the runs that docs/plan.md lists.
struct TimePlan {
  double compute = 0;        ///< products and attention
  double communication = 0;  ///< gathers and reductions beside them
  double boundary = 0;       ///< collectives that nothing runs beside
  double update = 0;
  double generate_at_least = 0;  ///< reading weights and cache for each token
  double train() const { return std::max(compute, communication) + boundary + update; }
};
TimePlan plan_time(const PlanRequest& request, const Hardware& hardware);

/// A changed request and what it takes.
struct PlanOption {
  std::string change;  ///< "micro-batch 4 instead of 8"
  PlanRequest request;
  MemoryPlan memory;
};

/// Single changes that bring the request below `limit` bytes, the mildest first; if none does,
/// all of them together, if that does.
std::vector<PlanOption> options_that_fit(const PlanRequest& request, int64_t limit);

/// Every placement, recomputation and micro-batch (powers of two) that fits, the fastest first.
std::vector<PlanOption> sweep(const PlanRequest& request, const Hardware& hardware);

}  // namespace reknit
