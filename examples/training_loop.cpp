// A training loop: two ranks share a small model by ZeRO-3 and learn to count.
#include <reknit/engine/model.h>
#include <reknit/engine/runtime.h>
#include <reknit/engine/trainer.h>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <numeric>

using namespace reknit;

constexpr int kSteps = 20;
constexpr int64_t kLength = 32;

ModelSpec small_model() {
  return ModelSpec::from_hf(nlohmann::json::parse(R"({"model_type": "gpt2", "vocab_size": 64,
      "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "eos_token_id": 0})"));
}

/// Mean negative log-likelihood over the ranks before and after.
std::pair<double, double> train(RankEnvironment& environment) {
  const auto world = environment.world;
  const ModelSpec spec = small_model();
  SlotPool pool(environment.allocator);
  const auto model = make_model(spec, {.placement = {.zero_stage = 3, .shard_size = world->size()}},
                                StoreComms::over(world, world->size()), pool);
  pool.seal();
  init_model(*model, /*seed=*/1);
  Trainer trainer(model->store, {.lr = 1e-2});

  // Rank r counts from 1 + 10 r; every token's target is the next one, the last has none (-1).
  std::vector<int64_t> tokens(kLength);
  std::iota(tokens.begin(), tokens.end(), 1 + 10 * world->rank());
  const auto batch = TokenBatch::of(tokens, {kLength}, spec, this_rank().device);
  at::Tensor targets = batch.tokens.roll(-1);
  targets[kLength - 1] = -1;
  const double weight = -1.0 / static_cast<double>((kLength - 1) * world->size());

  double first = 0, last = 0;
  for (int step = 1; step <= kSteps; ++step) {
    std::shared_ptr<Saved> saved;
    const auto scored = model->decoder.logprobs(model->store, batch, targets, Phase::kForward,
                                                /*with_entropy=*/false, &saved);
    model->decoder.logprobs_backward(model->store, std::move(saved),
                                     at::full({kLength}, weight, scored.logp.options()));
    const StepRecord record = trainer.step();

    const Stream& stream = this_rank().compute;
    last = world->all_reduce({scored.logp.sum() * weight}, ReduceOp::kSum, stream)
               .wait(stream)[0]
               .item<double>();
    first = step == 1 ? last : first;
    if (world->rank() == 0 && (step == 1 || step % 5 == 0)) {
      std::printf("step %2d  loss %.4f  gradient norm %.3f\n", step, last, record.grad_norm);
    }
  }
  return {first, last};
}

int main() {
  bool learned = true;
  run_on_ranks({.devices = {at::kCPU, at::kCPU}}, [&](RankEnvironment& environment) {
    const auto [first, last] = train(environment);
    if (environment.world->rank() == 0) {
      learned = last < first / 2;
    }
  });
  return learned ? 0 : 1;
}
