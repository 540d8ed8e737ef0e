// What a step leaves of the gradients of the one before.
#include "reknit/engine/trainer.h"

#include "tests/support/temp_folder.h"
#include "tests/support/toy_run.h"

#include <gtest/gtest.h>

#include <mutex>

namespace reknit {
namespace {

using namespace testing_support;

const ToyModel kToy = run_toy_model();

// A slot that reduce(..., false) kept open is no part of what comes after the drop.
TEST(Trainer, ADroppedStepLeavesNothingOfGradientsThatWereLeftOpen) {
  for (const int stage : {0, 1, 2, 3}) {
    std::mutex mutex;
    std::vector<at::Tensor> plain;
    std::vector<at::Tensor> dropped;
    for (const bool drops : {false, true}) {
      on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
        ToyRank rank(kToy, {.world = 2, .zero_stage = stage}, comm);
        load_toy(rank.store(), kToy);
        if (drops) {
          Gradients grads = rank.store().gradients(0);
          grads[0].fill_(100.0);
          rank.store().reduce(std::move(grads), /*last=*/false);
          rank.store().drop_step();
        }
        rank.train(1);
        const std::vector<at::Tensor> weights = rank.weights();
        const std::lock_guard lock(mutex);
        (drops ? dropped : plain) = weights;
      });
    }
    ASSERT_EQ(plain.size(), dropped.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(at::equal(plain[i], dropped[i])) << "stage " << stage << ", parameter " << i;
    }
  }
}

// Each rank's part of the gradient alone would make other weights.
TEST(Trainer, GradientsThatFollowALoadAreReducedAlthoughThoseBeforeItWere) {
  const TempFolder out;
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    ToyRank rank(kToy, {.world = 2, .zero_stage = 0}, comm);
    load_toy(rank.store(), kToy);
    const std::string saved = rank.save(out.path());
    rank.train(1);
    const std::vector<at::Tensor> expected = rank.weights();
    rank.load(saved);
    rank.pass();
    rank.trainer().reduce();
    rank.load(saved);
    rank.train(1);
    const std::vector<at::Tensor> weights = rank.weights();
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TRUE(at::equal(weights[i], expected[i])) << "parameter " << i;
    }
  });
}

}  // namespace
}  // namespace reknit
