// From the options of a command to a plan of what it will take.
#pragma once

#include "apps/options.h"
#include "reknit/engine/plan.h"

#include <string>

namespace reknit {

/// The settings of store_settings in session.h, without an allocator.
StoreSettings planned_store(const std::string& name, const ModelSettings& settings, int ranks,
                            bool training);

/// One model as a command will make it on `ranks` ranks.
PlannedModel planned_model(const std::string& name, const ModelSpec& spec,
                           const ModelSettings& settings, int64_t ranks, bool training);

/// Actor, critic, reference and reward of a PPO run, the actor first.
std::vector<PlannedModel> planned_ppo(const ModelSpec& actor, const ModelSpec& critic,
                                      const ModelSettings& actor_settings,
                                      const ModelSettings& critic_settings, int64_t ranks);

/// Before a run starts: UsageError, with the changes that help, if memory that is known
/// exactly does not fit in what the GPUs of this process have free; a warning if the estimate
/// of all of it does not. On the CPU nothing is judged.
void require_fits(const PlanRequest& request, const Place& place);

/// "12.34 GB"; below a hundredth of it "1.23 MB".
std::string gigabytes(int64_t bytes);

}  // namespace reknit
