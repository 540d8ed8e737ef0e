// Gathers that come late on one rank: released slots hold NaN, so a weight that is used
// before its gather has ended would show in the loss.
#include "reknit/engine/trainer.h"
#include "tests/support/rank_model.h"

#include <gtest/gtest.h>

namespace reknit {
namespace {

using namespace testing_support;
using namespace std::chrono_literals;

constexpr int kWorld = 4;
constexpr int kLateRank = 1;
constexpr int kSteps = 2;

/// Work that keeps this rank's gather stream busy for some milliseconds.
void occupy_gather_stream() {
  const StreamScope scope(this_rank().gather);
  at::Tensor x = at::full({2048, 2048}, 1.0 / 2048, test_device());
  for (int i = 0; i < 20; ++i) {
    x = at::mm(x, x);
  }
}

/// Every gather of the late rank takes 50 ms: until it joins, or until its result may be
/// seen. On a GPU its stream is behind as well.
FaultPlan late(std::chrono::milliseconds Fault::*delay) {
  return [delay](CommKind kind, int64_t, int rank) {
    Fault fault;
    if (kind == CommKind::kAllGather && rank == kLateRank) {
      fault.*delay = 50ms;
      if (test_device().is_cuda()) {
        occupy_gather_stream();
      }
    }
    return fault;
  };
}

/// The sum of log-probabilities of rank r's own tokens, and its backward.
double train_pass(Model& model) {
  const int rank = this_rank().rank;
  std::vector<int64_t> tokens;
  for (int64_t t = 0; t < 6 + rank; ++t) {
    tokens.push_back(4 + (rank * 31 + t * 17) % 60);
  }
  const auto count = static_cast<int64_t>(tokens.size());
  std::vector<int64_t> targets(tokens.begin() + 1, tokens.end());
  targets.push_back(-1);
  const auto options = at::TensorOptions(test_device());
  const auto batch = TokenBatch::of(tokens, {count}, model.decoder.spec(), test_device());
  std::shared_ptr<Saved> saved;
  const auto scored =
      model.decoder.logprobs(model.store, batch, at::tensor(targets, at::kLong).to(test_device()),
                             Phase::kForward, false, &saved);
  const double loss = -scored.logp.sum().item<double>();
  model.decoder.logprobs_backward(model.store, std::move(saved),
                                  at::full({count}, -0.1f, options.dtype(at::kFloat)));
  return loss;
}

/// [rank][step]
std::vector<std::vector<double>> losses(const FaultPlan& faults) {
  std::vector<std::vector<double>> all(kWorld);
  const auto body = [&](std::shared_ptr<Communicator> comm) {
    RankModel rank(golden_folder("models") / "opt-125m", comm, {.poison_released = true});
    Trainer trainer(rank.model->store, {.lr = 1e-2, .schedule = {}, .optimizer = {}, .scaler = {}});
    for (int step = 0; step < kSteps; ++step) {
      all[comm->rank()].push_back(train_pass(*rank.model));
      trainer.step();
    }
  };
  on_ranks(kWorld, body, patience(), faults);
  return all;
}

TEST(DelayedGather, LossesOfFourRanksAreBitEqualToThoseWithoutADelay) {
  const auto expected = losses({});
  for (const auto& rank : expected) {
    EXPECT_TRUE(std::isfinite(rank[0]));
    EXPECT_NE(rank[0], rank[1]) << "nothing is learnt";
  }
  EXPECT_EQ(losses(late(&Fault::delay_start)), expected);
  EXPECT_EQ(losses(late(&Fault::delay_result)), expected);
}

}  // namespace
}  // namespace reknit
