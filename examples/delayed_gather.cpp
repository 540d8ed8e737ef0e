// The same training with and without late gathers: the losses are equal bit for bit. And what
// becomes of a gather that nobody waits for.
#include <reknit/base/rank.h>
#include <reknit/comm/fault.h>
#include <reknit/comm/threads.h>
#include <reknit/engine/model.h>
#include <reknit/engine/trainer.h>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <exception>
#include <vector>

using namespace reknit;

constexpr int kRanks = 4;
constexpr int kSteps = 4;
constexpr int64_t kLength = 16;

/// `body` on four thread ranks whose collectives follow `plan`.
template <class Body>
void on_ranks(const FaultPlan& plan, const Body& body) {
  std::vector<std::shared_ptr<Communicator>> comms;
  for (auto& comm : make_thread_group(kRanks, {.name = "world"})) {
    comms.push_back(make_fault(std::move(comm), plan));
  }
  run_ranks(
      std::vector<c10::Device>(kRanks, at::kCPU), [&](int rank) { body(comms[rank]); },
      [&](const std::string& reason) { comms.front()->abort(reason); });
}

/// The loss of each step, in shard groups of `shard_size` ranks.
std::vector<float> train(int shard_size, const FaultPlan& plan) {
  const ModelSpec spec = ModelSpec::from_hf(nlohmann::json::parse(R"({"model_type": "gpt2",
      "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64})"));
  std::vector<float> losses;
  on_ranks(plan, [&](const std::shared_ptr<Communicator>& world) {
    SlotPool pool([](int64_t bytes) { return at::empty({bytes}, at::kByte); });
    const auto model = make_model(spec, {.placement = {.zero_stage = 3, .shard_size = shard_size}},
                                  StoreComms::over(world, shard_size), pool);
    pool.seal();
    init_model(*model, /*seed=*/1);
    Trainer trainer(model->store, {.lr = 1e-2});
    std::vector<int64_t> tokens(kLength);
    for (int64_t i = 0; i < kLength; ++i) {
      tokens[i] = (7 * i + 11 * world->rank()) % 64;
    }
    const auto batch = TokenBatch::of(tokens, {kLength}, spec, this_rank().device);
    const at::Tensor targets = batch.tokens.roll(-1);
    for (int step = 0; step < kSteps; ++step) {
      std::shared_ptr<Saved> saved;
      const auto scored = model->decoder.logprobs(model->store, batch, targets, Phase::kForward,
                                                  /*with_entropy=*/false, &saved);
      model->decoder.logprobs_backward(
          model->store, std::move(saved),
          at::full({kLength}, -1.0 / (kLength * kRanks), scored.logp.options()));
      trainer.step();
      const Stream& stream = this_rank().compute;
      const at::Tensor loss =
          world->all_reduce({-scored.logp.mean() / kRanks}, ReduceOp::kSum, stream).wait(stream)[0];
      if (world->rank() == 0) {
        losses.push_back(loss.item<float>());
      }
    }
  });
  return losses;
}

void print(const char* what, const std::vector<float>& losses) {
  std::printf("%-36s", what);
  for (const float loss : losses) {
    std::printf(" %a", loss);
  }
  std::printf("\n");
}

int main() {
  const FaultPlan nobody_late = [](CommKind, int64_t, int) { return Fault{}; };
  const FaultPlan rank_1_late = [](CommKind kind, int64_t, int rank) {
    const bool late = kind == CommKind::kAllGather && rank == 1;
    return Fault{.delay_start = std::chrono::milliseconds(late ? 50 : 0)};
  };
  bool equal = true;
  for (const int shard_size : {kRanks, kRanks / 2}) {
    const auto expected = train(shard_size, nobody_late);
    const auto delayed = train(shard_size, rank_1_late);
    print(shard_size == kRanks ? "ZeRO-3, nobody late:" : "MiCS, groups of 2, nobody late:",
          expected);
    print(
        shard_size == kRanks ? "ZeRO-3, gathers of rank 1 late:" : "MiCS, gathers of rank 1 late:",
        delayed);
    equal = equal && expected == delayed;
  }
  std::printf("equal bit for bit: %s\n", equal ? "yes" : "no");

  bool refused = false;
  try {
    on_ranks(nobody_late, [](const std::shared_ptr<Communicator>& world) {
      const at::Tensor full = at::empty({kRanks}, at::kFloat), shard = at::ones({1}, at::kFloat);
      { const auto dropped = world->all_gather(full, {{full, shard}}, this_rank().gather); }
      world->barrier();
    });
  } catch (const std::exception& error) {
    refused = true;
    std::printf("a gather that nobody waits for: %s\n", error.what());
  }
  return equal && refused ? 0 : 1;
}
