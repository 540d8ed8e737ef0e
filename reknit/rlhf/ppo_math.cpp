#include "reknit/rlhf/ppo_math.h"

#include "reknit/base/error.h"

#include <algorithm>
#include <cmath>

namespace reknit {
namespace {

void require_number(double value, const char* what, size_t entry) {
  if (std::isnan(value)) [[unlikely]] {
    throw NumbersError(str(what, " of the answer token ", entry, " is NaN"),
                       "lower the learning rate, or look at the answer in samples.jsonl");
  }
}

}  // namespace

std::vector<double> token_rewards(std::span<const float> logp, std::span<const float> ref_logp,
                                  double score, const PpoConstants& constants) {
  std::vector<double> rewards(logp.size());
  for (size_t t = 0; t < logp.size(); ++t) {
    rewards[t] =
        -constants.kl_ctl * (static_cast<double>(logp[t]) - static_cast<double>(ref_logp[t]));
    require_number(rewards[t], "the KL penalty", t);
  }
  if (!rewards.empty()) {
    require_number(score, "the score", rewards.size() - 1);
    rewards.back() += std::clamp(score, -constants.clip_reward_value, constants.clip_reward_value);
  }
  return rewards;
}

Advantages estimate_advantages(std::span<const double> rewards, std::span<const float> values,
                               const PpoConstants& constants) {
  const size_t n = rewards.size();
  Advantages result{std::vector<double>(n), std::vector<double>(n)};
  double next_value = 0.0;
  double next_advantage = 0.0;
  for (size_t t = n; t-- > 0;) {
    require_number(values[t], "the value", t);
    const double delta = rewards[t] + constants.gamma * next_value - values[t];
    next_advantage = delta + constants.gamma * constants.lam * next_advantage;
    next_value = values[t];
    result.advantages[t] = next_advantage;
    result.returns[t] = next_advantage + values[t];
  }
  return result;
}

PolicyLoss policy_loss(std::span<const float> logp, std::span<const float> old_logp,
                       std::span<const double> advantages, std::span<const uint8_t> mask,
                       double cliprange, double weight, std::span<float> d_logp) {
  PolicyLoss result;
  for (size_t t = 0; t < logp.size(); ++t) {
    d_logp[t] = 0.0f;
    if (mask[t] == 0) {
      continue;
    }
    const double ratio = std::exp(static_cast<double>(logp[t]) - static_cast<double>(old_logp[t]));
    const double plain = -advantages[t] * ratio;
    const double clipped = -advantages[t] * std::clamp(ratio, 1.0 - cliprange, 1.0 + cliprange);
    require_number(plain, "the policy loss", t);
    result.ratio_max = std::max(result.ratio_max, ratio);
    if (plain >= clipped) {
      result.loss += plain;
      d_logp[t] = static_cast<float>(plain * weight);  // d(-A r)/dlogp = -A r
    } else {
      result.loss += clipped;  // constant in logp: r lies outside of the clip range
      ++result.clipped;
    }
  }
  return result;
}

ValueLoss value_loss(std::span<const float> values, std::span<const float> old_values,
                     std::span<const double> returns, std::span<const uint8_t> mask,
                     double cliprange_value, double weight, std::span<float> d_values) {
  ValueLoss result;
  for (size_t t = 0; t < values.size(); ++t) {
    d_values[t] = 0.0f;
    if (mask[t] == 0) {
      continue;
    }
    const double value = values[t];
    const double old = old_values[t];
    const double near = std::clamp(value, old - cliprange_value, old + cliprange_value);
    const double plain = value - returns[t];
    const double clipped = near - returns[t];
    require_number(plain, "the value loss", t);
    if (plain * plain >= clipped * clipped) {
      result.loss += 0.5 * plain * plain;
      d_values[t] = static_cast<float>(plain * weight);
    } else {
      result.loss += 0.5 * clipped * clipped;  // constant in v: v lies outside of the range
      ++result.clipped;
    }
  }
  return result;
}

}  // namespace reknit
