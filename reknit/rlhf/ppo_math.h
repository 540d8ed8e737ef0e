// PPO's arithmetic on one answer: plain numbers, no tensors, no ranks.
//
// An answer of n tokens has n entries: entry t speaks of the token t of the answer and
// of the state before it. A function that takes a mask leaves the masked entries (mask[t] ==
// 0) out, so a NaN there changes nothing; the others use every entry. A NaN in an entry that
// is used throws NumbersError that names it.
// Sources: Schulman et al., "Proximal policy optimization algorithms" (2017);
// Schulman et al., "High-dimensional continuous control using generalized advantage
// estimation" (2016); constants as DeepSpeed-Chat has them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace reknit {

struct PpoConstants {
  double kl_ctl = 0.1;
  double clip_reward_value = 5.0;
  double cliprange = 0.2;
  double cliprange_value = 0.2;
  double gamma = 1.0;
  double lam = 0.95;
};

/// -kl_ctl (logp - ref_logp) for each entry, plus the score, clipped, at the last one.
/// Every entry counts, masked or not (the end token's state is worth the score).
std::vector<double> token_rewards(std::span<const float> logp, std::span<const float> ref_logp,
                                  double score, const PpoConstants& constants);

struct Advantages {
  std::vector<double> advantages;
  std::vector<double> returns;  ///< advantages + values
};

/// Generalised advantage estimation; the state after the last entry is worth 0.
Advantages estimate_advantages(std::span<const double> rewards, std::span<const float> values,
                               const PpoConstants& constants);

/// Sums over the unmasked entries of one answer; the caller divides by the tokens of the
/// global batch.
struct PolicyLoss {
  double loss = 0.0;
  int64_t clipped = 0;     ///< entries whose clipped branch is taken
  double ratio_max = 0.0;  ///< largest exp(logp - old_logp)
};
/// max(-A r, -A clip(r, 1 - c, 1 + c)), r = exp(logp - old_logp). Writes the derivative by
/// logp, times `weight`, to `d_logp` (exactly 0 where masked).
PolicyLoss policy_loss(std::span<const float> logp, std::span<const float> old_logp,
                       std::span<const double> advantages, std::span<const uint8_t> mask,
                       double cliprange, double weight, std::span<float> d_logp);

struct ValueLoss {
  double loss = 0.0;
  int64_t clipped = 0;
};
/// 0.5 max((v - R)^2, (clip(v, old +- c) - R)^2). Writes the derivative by v, times `weight`.
ValueLoss value_loss(std::span<const float> values, std::span<const float> old_values,
                     std::span<const double> returns, std::span<const uint8_t> mask,
                     double cliprange_value, double weight, std::span<float> d_values);

}  // namespace reknit
