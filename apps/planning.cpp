#include "apps/planning.h"

#include "apps/device_memory.h"
#include "apps/session.h"
#include "reknit/base/format.h"
#include "reknit/base/log.h"
#include "reknit/optim/configured.h"

#include <algorithm>
#include <map>

namespace reknit {
namespace {

std::string help_of(const PlanRequest& request, int64_t limit) {
  std::string help;
  for (const PlanOption& option : options_that_fit(request, limit)) {
    help += str(help.empty() ? "" : "; or ", option.change, ": ", gigabytes(option.memory.total()),
                " a rank");
  }
  return help.empty() ? "use more or larger GPUs; reknit plan --sweep lists what fits" : help;
}

}  // namespace

std::string gigabytes(int64_t bytes) {
  constexpr int64_t kLittle = 10'000'000;
  return bytes > 0 && bytes < kLittle ? format("%.2f MB", static_cast<double>(bytes) / 1e6)
                                      : format("%.2f GB", static_cast<double>(bytes) / 1e9);
}

PlannedModel planned_model(const std::string& name, const ModelSpec& spec,
                           const ModelSettings& settings, int64_t ranks, bool training) {
  return {.spec = spec,
          .store = planned_store(name, settings, static_cast<int>(ranks), training),
          .checkpointing =
              settings.gradient_checkpointing ? Checkpointing::kFull : Checkpointing::kNone,
          .optimizer = optimizer_settings(settings.reading.config.optimizer)};
}

std::vector<PlannedModel> planned_ppo(const ModelSpec& actor, const ModelSpec& critic,
                                      const ModelSettings& actor_settings,
                                      const ModelSettings& critic_settings, int64_t ranks) {
  ModelSpec judge = critic;
  judge.value_head = true;
  return {planned_model("actor", actor, actor_settings, ranks, true),
          planned_model("critic", judge, critic_settings, ranks, true),
          planned_model("reference", actor, actor_settings, ranks, false),
          planned_model("reward", judge, critic_settings, ranks, false)};
}

void require_fits(const PlanRequest& request, const Place& place) {
  if (!place.cuda) {
    return;
  }
  std::map<int, int> ranks_on;  // by device
  for (const c10::Device& device : place.devices()) {
    ++ranks_on[device.index()];
  }
  const MemoryPlan plan = plan_memory(request);
  for (const auto& [device, ranks] : ranks_on) {
    const int64_t limit = free_device_memory(device) / ranks;
    const std::string has = str("GPU ", device, " has ", gigabytes(limit), " free for each of ",
                                ranks, ranks == 1 ? " rank" : " ranks");
    if (plan.pools() > limit) {
      throw UsageError(str("this run cannot fit: shards, slots, pinned weights and cache take ",
                           gigabytes(plan.pools()), " a rank, and ", has),
                       help_of(request, limit));
    }
    if (plan.total() > limit) {
      log_warning("with activations of the longest sequences a rank may need ",
                  gigabytes(plan.total()), ", and ", has,
                  "; what would help: ", help_of(request, limit));
    }
  }
}

}  // namespace reknit
