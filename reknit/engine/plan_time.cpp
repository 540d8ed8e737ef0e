// Seconds of a planned step.
#include "reknit/engine/plan.h"

#include <algorithm>

namespace reknit {
namespace {

/// Shares of the peak rates that whole steps reach; docs/plan.md has the runs.
constexpr double kProductShare = 0.42;
constexpr double kMemoryShare = 0.8;
constexpr double kLinkShare = 0.75;
/// Reads and writes of each fp32 score where attention writes them down.
constexpr double kScorePasses = 80;
constexpr double kCollectiveLatency = 25e-6;

const std::vector<Hardware>& known() {
  static const std::vector<Hardware> all = {
      {"h100-80g", 84'900'000'000, 989e12, 67e12, 3.35e12, 450e9, 50e9},
      {"h200", 149'800'000'000, 989e12, 67e12, 4.8e12, 450e9, 50e9},
      {"a100-80g", 84'900'000'000, 312e12, 19.5e12, 2.0e12, 300e9, 25e9},
  };
  return all;
}

double product_seconds(const PlannedModel& model, const PlanRequest& request,
                       const Hardware& hardware) {
  const ForwardWork work = forward_work(model.spec, request.batch);
  const bool half = model.store.dtype != at::kFloat;
  const double rate = (half ? hardware.half_flops : hardware.float_flops) * kProductShare;
  const double again = work.blocks * recomputed_share(model.spec, model.checkpointing);
  double seconds = (3 * work.total() + again) / rate;
  if (attention_is_dense(model.spec, request.batch, model.store.dtype, request.cuda)) {
    const auto scores = static_cast<double>(model.spec.layers * model.spec.heads) *
                        static_cast<double>(request.batch.tokens() * request.batch.length);
    seconds += scores * 4 * kScorePasses / (hardware.memory_rate * kMemoryShare);
  }
  return seconds * static_cast<double>(request.micro_batches);
}

double transfer_seconds(const CommCounts::Entry& moved, const Hardware& hardware) {
  return static_cast<double>(moved.inside) / (hardware.link * kLinkShare) +
         static_cast<double>(moved.across) / (hardware.network * kLinkShare) +
         static_cast<double>(moved.count) * kCollectiveLatency;
}

/// The update reads gradient, master and moments and writes all but the gradient.
double update_seconds(const MemoryPlan& memory, const Hardware& hardware) {
  const int64_t bytes =
      2 * memory.gradients + 2 * memory.masters + 2 * memory.moments + memory.weights;
  return static_cast<double>(bytes) / (hardware.memory_rate * kMemoryShare);
}

double generate_seconds(const PlanRequest& request, const Hardware& hardware) {
  const PlannedGeneration& generation = *request.generation;
  const PlannedModel& model = request.models.front();
  const auto width = static_cast<int64_t>(c10::elementSize(model.store.dtype));
  const int64_t cache =
      planned_cache(model, generation.sequences, generation.prompt + generation.answer / 2);
  const auto bytes = static_cast<double>(num_parameters(model.spec) * width + cache);
  return static_cast<double>(generation.answer) * bytes / (hardware.memory_rate * kMemoryShare);
}

}  // namespace

Hardware Hardware::of(const std::string& name) {
  std::string all;
  for (const Hardware& hardware : known()) {
    if (hardware.name == name) {
      return hardware;
    }
    all += str(all.empty() ? "" : ", ", hardware.name);
  }
  throw UsageError(str("there are no figures for a GPU named ", name),
                   str("known: ", all, "; or pass --memory, --link and --network"));
}

std::vector<std::string> Hardware::names() {
  std::vector<std::string> all;
  for (const Hardware& hardware : known()) {
    all.push_back(hardware.name);
  }
  return all;
}

TimePlan plan_time(const PlanRequest& request, const Hardware& hardware) {
  TimePlan time;
  for (const PlannedModel& model : request.models) {
    if (model.store.training) {
      time.compute += product_seconds(model, request, hardware);
    }
  }
  const StepTraffic traffic = plan_traffic(request);
  CommCounts::Entry beside = traffic.gathers;
  beside += traffic.reductions;
  CommCounts::Entry alone = traffic.boundary;
  alone += traffic.publishing;
  const bool overlap = std::all_of(request.models.begin(), request.models.end(),
                                   [](const auto& model) { return model.store.overlap; });
  (overlap ? time.communication : time.boundary) = transfer_seconds(beside, hardware);
  time.boundary += transfer_seconds(alone, hardware);
  time.update = update_seconds(plan_memory(request), hardware);
  if (request.generation) {
    time.generate_at_least = generate_seconds(request, hardware);
  }
  return time;
}

}  // namespace reknit
