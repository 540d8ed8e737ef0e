// Generating and training by turns with one set of sharded weights: the policy learns to
// prefer even tokens (REINFORCE, two ranks, ZeRO-3).
#include <reknit/engine/hybrid.h>
#include <reknit/engine/model.h>
#include <reknit/engine/runtime.h>
#include <reknit/engine/trainer.h>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>

using namespace reknit;

constexpr int kSteps = 12;
constexpr int64_t kAnswers = 8;  // of each rank
constexpr int64_t kLength = 16;

ModelSpec small_model() {
  return ModelSpec::from_hf(nlohmann::json::parse(R"({"model_type": "bloom", "vocab_size": 64,
      "hidden_size": 32, "n_layer": 2, "n_head": 4, "eos_token_id": 0, "initializer_range": 0.1})"));
}

double even_share(const std::vector<int64_t>& tokens) {
  return static_cast<double>(std::ranges::count_if(tokens, [](auto t) { return t % 2 == 0; })) /
         static_cast<double>(tokens.size());
}

double mean_over_ranks(Communicator& world, double value) {
  const Stream& stream = this_rank().compute;
  const at::Tensor mine = at::full({1}, value, at::dtype(at::kDouble).device(this_rank().device));
  return world.all_reduce({mine}, ReduceOp::kSum, stream).wait(stream)[0].item<double>() /
         world.size();
}

/// Samples answers with every group gathered once; the lease ends with the function.
std::vector<Generation> sample(Hybrid& hybrid, int step, int rank) {
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < kAnswers; ++i) {
    // The number keys the random stream, so each answer of each step needs its own.
    const int64_t sequence = (2 * step + rank) * kAnswers + i;
    requests.push_back({.prompt = {1 + i}, .sequence = static_cast<uint64_t>(sequence)});
  }
  GenerateLease lease = hybrid.enter_generation();
  return lease.generate(requests, kAnswers, {.max_new_tokens = kLength, .temperature = 1.0});
}

/// One update that raises the probability of answers better than `baseline`.
void learn(Model& model, Trainer& trainer, const std::vector<Generation>& answers, double baseline,
           int world) {
  std::vector<int64_t> tokens, targets, lengths;
  std::vector<float> weights;
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto& answer = answers[i].tokens;
    tokens.push_back(1 + static_cast<int64_t>(i));  // its prompt
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    targets.insert(targets.end(), answer.begin(), answer.end());
    targets.push_back(-1);  // nothing follows the last token
    lengths.push_back(static_cast<int64_t>(answer.size()) + 1);
    const double gain = (even_share(answer) - baseline) / static_cast<double>(kAnswers * world);
    weights.insert(weights.end(), answer.size() + 1, static_cast<float>(-gain));
  }
  const auto device = this_rank().device;
  const auto batch = TokenBatch::of(tokens, lengths, model.decoder.spec(), device);
  std::shared_ptr<Saved> saved;
  model.decoder.logprobs(model.store, batch, at::tensor(targets).to(device), Phase::kForward,
                         /*with_entropy=*/false, &saved);
  model.decoder.logprobs_backward(model.store, std::move(saved), at::tensor(weights).to(device));
  trainer.step();
}

int main() {
  bool learned = true;
  run_on_ranks({.devices = {at::kCPU, at::kCPU}}, [&](RankEnvironment& environment) {
    Communicator& world = *environment.world;
    SlotPool pool(environment.allocator);
    const auto model =
        make_model(small_model(), {.placement = {.zero_stage = 3, .shard_size = world.size()}},
                   StoreComms::over(environment.world, world.size()), pool);
    pool.seal();
    init_model(*model, /*seed=*/1);
    Hybrid hybrid(model->decoder, model->store, {.mode = GatherMode::kPinned});
    Trainer trainer(model->store, {.lr = 2e-2});

    double first = 0, share = 0;
    for (int step = 0; step <= kSteps; ++step) {
      const auto answers = sample(hybrid, step, world.rank());
      double mine = 0;
      for (const Generation& answer : answers) {
        mine += even_share(answer.tokens) / static_cast<double>(answers.size());
      }
      share = mean_over_ranks(world, mine);
      first = step == 0 ? share : first;
      if (world.rank() == 0 && step % 4 == 0) {
        std::printf("after %2d updates: %3.0f%% of the tokens are even\n", step, 100 * share);
      }
      learn(*model, trainer, answers, share, world.size());
    }
    if (world.rank() == 0) {
      learned = share > first + 0.2;
    }
  });
  return learned ? 0 : 1;
}
