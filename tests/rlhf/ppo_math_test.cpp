// PPO's arithmetic: worked examples, masks, derivatives.
#include "reknit/rlhf/ppo_math.h"

#include "reknit/base/error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace reknit {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Prompt 3, answer 2, score 2, no KL, no values: strict rule.
TEST(PpoMath, TheScoreLandsOnTheLastAnswerTokenAndDecaysByLambda) {
  const std::vector<float> zero(2, 0.0f);
  const auto rewards = token_rewards(zero, zero, 2.0, {});
  EXPECT_EQ(rewards, (std::vector<double>{0.0, 2.0}));
  const auto estimated = estimate_advantages(rewards, zero, {});
  EXPECT_DOUBLE_EQ(estimated.advantages[0], 1.9);
  EXPECT_DOUBLE_EQ(estimated.advantages[1], 2.0);
}

// The same with the masked end token behind it: DeepSpeed-Chat's rule.
TEST(PpoMath, WithTheEndTokenTheScoreLandsOnItsEntry) {
  const std::vector<float> zero(3, 0.0f);
  const auto estimated = estimate_advantages(token_rewards(zero, zero, 2.0, {}), zero, {});
  EXPECT_DOUBLE_EQ(estimated.advantages[0], 1.805);
  EXPECT_DOUBLE_EQ(estimated.advantages[1], 1.9);
  EXPECT_DOUBLE_EQ(estimated.advantages[2], 2.0);
}

TEST(PpoMath, ScoresAreClipped) {
  const std::vector<float> zero(2, 0.0f);
  EXPECT_DOUBLE_EQ(token_rewards(zero, zero, 7.0, {}).back(), 5.0);
  EXPECT_DOUBLE_EQ(token_rewards(zero, zero, -9.0, {}).back(), -5.0);
}

TEST(PpoMath, AnEmptyAnswerHasNoEntries) {
  EXPECT_TRUE(token_rewards({}, {}, 3.0, {}).empty());
  EXPECT_TRUE(estimate_advantages({}, {}, {}).advantages.empty());
}

TEST(PpoMath, ANanInAMaskedEntryChangesNothing) {
  const std::vector<float> logp{0, 0};
  const std::vector<float> old{0, kNan};
  const std::vector<double> advantages{1, 1};
  std::vector<float> gradient{9, 9};
  const auto loss =
      policy_loss(logp, old, advantages, std::vector<uint8_t>{1, 0}, 0.2, 1.0, gradient);
  EXPECT_DOUBLE_EQ(loss.loss, -1.0);
  EXPECT_EQ(gradient[0], -1.0f);
  EXPECT_EQ(gradient[1], 0.0f);
}

TEST(PpoMath, ANanInAnUnmaskedEntryIsAnError) {
  const std::vector<float> logp{0, 0};
  const std::vector<float> old{0, kNan};
  std::vector<float> gradient(2);
  EXPECT_THROW(policy_loss(logp, old, std::vector<double>{1, 1}, std::vector<uint8_t>{1, 1}, 0.2,
                           1.0, gradient),
               NumbersError);
  EXPECT_THROW(value_loss(old, logp, std::vector<double>{1, 1}, std::vector<uint8_t>{1, 1}, 0.2,
                          1.0, gradient),
               NumbersError);
}

// Rewards and advantages use every entry, the masked end token's included.
TEST(PpoMath, ANanIsReportedForTheTokenThatHasIt) {
  const auto sentence = [](const auto& body) -> std::string {
    try {
      body();
    } catch (const NumbersError& error) {
      return error.what();
    }
    return "";
  };
  const std::vector<float> zero(3, 0.0f);
  const std::vector<float> last{0, 0, kNan};
  const std::vector<float> middle{0, kNan, 0};
  EXPECT_EQ(sentence([&] { token_rewards(last, zero, 1.0, {}); }),
            "the KL penalty of the answer token 2 is NaN");
  EXPECT_EQ(sentence([&] { token_rewards(zero, middle, 1.0, {}); }),
            "the KL penalty of the answer token 1 is NaN");
  EXPECT_EQ(sentence([&] { estimate_advantages(std::vector<double>(3, 0.0), last, {}); }),
            "the value of the answer token 2 is NaN");
}

TEST(PpoMath, DerivativesEqualCentralDifferences) {
  const std::vector<uint8_t> mask{1};
  for (const double old : {-1.0, -0.5}) {
    for (const double now : {-1.6, -0.9, -0.55, -0.1}) {
      for (const double advantage : {-1.5, 0.7}) {
        const auto policy = [&](double x) {
          std::vector<float> scratch(1);
          return policy_loss(std::vector<float>{static_cast<float>(x)},
                             std::vector<float>{static_cast<float>(old)},
                             std::vector<double>{advantage}, mask, 0.2, 1.0, scratch)
              .loss;
        };
        const auto value = [&](double x) {
          std::vector<float> scratch(1);
          return value_loss(std::vector<float>{static_cast<float>(x)},
                            std::vector<float>{static_cast<float>(old)},
                            std::vector<double>{advantage}, mask, 0.2, 1.0, scratch)
              .loss;
        };
        std::vector<float> gradient(1);
        const double h = 1e-3;
        policy_loss(std::vector<float>{static_cast<float>(now)},
                    std::vector<float>{static_cast<float>(old)}, std::vector<double>{advantage},
                    mask, 0.2, 1.0, gradient);
        EXPECT_NEAR(gradient[0], (policy(now + h) - policy(now - h)) / (2 * h), 2e-3);
        value_loss(std::vector<float>{static_cast<float>(now)},
                   std::vector<float>{static_cast<float>(old)}, std::vector<double>{advantage},
                   mask, 0.2, 1.0, gradient);
        EXPECT_NEAR(gradient[0], (value(now + h) - value(now - h)) / (2 * h), 2e-3);
      }
    }
  }
}

}  // namespace
}  // namespace reknit
