#include "reknit/rlhf/ppo_report.h"

#include "reknit/base/format.h"
#include "reknit/engine/comm_report.h"

#include <algorithm>

namespace reknit {
namespace {

nlohmann::ordered_json step_json(const StepRecord& step, int64_t skipped) {
  return {{"lr", step.lr},
          {"grad_norm", step.grad_norm},
          {"loss_scale", step.loss_scale},
          {"skipped", skipped}};
}

}  // namespace

nlohmann::ordered_json metrics_of(const PpoRecord& r, int64_t global_batch) {
  nlohmann::ordered_json line = {{"step", r.step},
                                 {"reward", r.reward},
                                 {"reward_std", r.reward_std},
                                 {"kl", r.kl},
                                 {"actor_loss", r.actor_loss},
                                 {"critic_loss", r.critic_loss},
                                 {"answer_length", r.answer_length},
                                 {"entropy", r.entropy},
                                 {"clip_fraction", r.clip_fraction},
                                 {"value_clip_fraction", r.value_clip_fraction},
                                 {"ratio_max", r.ratio_max},
                                 {"explained_variance", r.explained_variance},
                                 {"eos_fraction", r.eos_fraction},
                                 {"tokens", r.tokens},
                                 {"peak_bytes", r.peak_bytes},
                                 {"e2e_s", r.e2e_s},
                                 {"gather_s", r.gather_s},
                                 {"generate_s", r.generate_s},
                                 {"train_s", r.train_s},
                                 {"other_s", r.other_s}};
  line["samples_per_s"] = static_cast<double>(global_batch) / std::max(1e-9, r.e2e_s);
  line["comm"] = comm_json(r.comm);
  line["actor"] = step_json(r.actor, r.actor_skipped);
  line["critic"] = step_json(r.critic, r.critic_skipped);
  return line;
}

nlohmann::ordered_json sample_of(const Experience& experience, int64_t step,
                                 const std::string& prompt, const std::string& answer) {
  return {{"step", step},
          {"sequence", experience.sequence},
          {"prompt", prompt},
          {"answer", answer},
          {"tokens", experience.tokens},
          {"prompt_length", experience.prompt_length},
          {"score", experience.score},
          {"advantages", experience.advantages}};
}

std::string PpoPrinter::lines(const PpoRecord& r, int64_t global_batch) {
  seconds_ += r.e2e_s;
  samples_ += global_batch;
  const double whole = std::max(1e-9, r.e2e_s);
  std::string text = format(
      "|E2E latency=%.2fs |Gather latency=%.2fs (%.2f%%) |Generate time=%.2fs (%.2f%%) "
      "|Training time=%.2fs (%.2f%%) |Others=%.2f (%.2f%%)|CurSamplesPerSec=%.2f "
      "|AvgSamplesPerSec=%.2f\n",
      r.e2e_s, r.gather_s, 100 * r.gather_s / whole, r.generate_s, 100 * r.generate_s / whole,
      r.train_s, 100 * r.train_s / whole, r.other_s, 100 * r.other_s / whole,
      static_cast<double>(global_batch) / whole,
      static_cast<double>(samples_) / std::max(1e-9, seconds_));
  text +=
      format("step %lld: actor loss %.6f, critic loss %.6f, KL %.6f, answer length %.1f\n",
             static_cast<long long>(r.step), r.actor_loss, r.critic_loss, r.kl, r.answer_length);
  text += format("average reward score %.6f, moving average %.6f", r.reward, r.reward_ema);
  return text;
}

}  // namespace reknit
