#include "tests/support/twin_run.h"

#include "tests/support/ranks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

namespace reknit::testing_support {
namespace {

constexpr int64_t kGlobalBatch = 24;  ///< sequences

const std::map<std::string, std::string> kConfigs = {
    {"opt", R"({"model_type": "opt", "vocab_size": 83, "hidden_size": 32, "num_hidden_layers": 2,
      "num_attention_heads": 4, "ffn_dim": 56, "max_position_embeddings": 32, "init_std": 0.1})"},
    {"opt-350m", R"({"model_type": "opt", "vocab_size": 83, "hidden_size": 32,
      "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 37, "word_embed_proj_dim": 16,
      "do_layer_norm_before": false, "max_position_embeddings": 32, "init_std": 0.1})"},
    {"bloom", R"({"model_type": "bloom", "vocab_size": 97, "hidden_size": 32, "n_layer": 2,
      "n_head": 4, "initializer_range": 0.1})"},
    {"gpt2", R"({"model_type": "gpt2", "vocab_size": 89, "n_positions": 32, "n_embd": 32,
      "n_layer": 2, "n_head": 4, "initializer_range": 0.1})"},
};

int64_t length_of(int64_t sequence) {
  return 3 + sequence * 7 % 6;
}

int64_t token_of(int64_t sequence, int64_t place, int64_t vocab) {
  return 3 + (sequence * sequence * 7 + sequence * place * 5 + place * place * 3 + sequence * 11) %
                 (vocab - 3);
}

/// Tokens with a target: all but each sequence's last.
int64_t targets_of_step(int64_t step) {
  int64_t total = 0;
  for (int64_t i = 0; i < kGlobalBatch; ++i) {
    total += length_of(step * kGlobalBatch + i) - 1;
  }
  return total;
}

struct Batch {
  TokenBatch tokens;
  at::Tensor targets;
  at::Tensor mask;  ///< fp32: 1 where there is a target
};

Batch make_batch(const ModelSpec& spec, int64_t first, int64_t last) {
  std::vector<int64_t> tokens, lengths, targets;
  for (int64_t sequence = first; sequence < last; ++sequence) {
    lengths.push_back(length_of(sequence));
    for (int64_t t = 0; t < lengths.back(); ++t) {
      tokens.push_back(token_of(sequence, t, spec.vocab));
      targets.push_back(t + 1 < lengths.back() ? token_of(sequence, t + 1, spec.vocab) : -1);
    }
  }
  const auto device = this_rank().device;
  const at::Tensor target = at::tensor(targets, at::kLong).to(device);
  return {TokenBatch::of(tokens, lengths, spec, device), target, target.ge(0).to(at::kFloat)};
}

class TwinRank {
 public:
  TwinRank(const Twin& twin, std::shared_ptr<Communicator> world)
      : twin_(twin),
        world_(std::move(world)),
        pool_(rank_memory),
        model_(make_model(spec(),
                          {.name = "twin",
                           .dtype = twin.dtype,
                           .placement = twin.placement,
                           .persistence_threshold = 40,
                           .overlap = twin.overlap,
                           .reduce_dtype = twin.reduce_dtype,
                           .allocator = {}},
                          StoreComms::over(world_, twin.placement), pool_)) {
    pool_.seal();
    if (twin.folder.empty()) {
      init_model(*model_, 5);
    } else {
      load_model(*model_, HfFolder(twin.folder), ValueHead::kNone, 5);
    }
    trainer_.emplace(model_->store, TrainerSettings{.name = "twin",
                                                    .lr = 2e-3,
                                                    .schedule = {},
                                                    .optimizer = {},
                                                    .clip = 1.0,
                                                    .scaler = {.initial = 4096}});
  }

  /// The loss of the global batch of `step`.
  double step(int step, bool spoil, StepRecord& record) {
    double loss = 0;
    const int64_t part = kGlobalBatch / twin_.accumulation;
    for (int64_t micro = 0; micro < twin_.accumulation; ++micro) {
      const int64_t base = step * kGlobalBatch + micro * part;
      loss += micro_step(base + part * world_->rank() / world_->size(),
                         base + part * (world_->rank() + 1) / world_->size(),
                         1.0 / static_cast<double>(targets_of_step(step)), spoil);
    }
    record = trainer_->step();
    const at::Tensor sum =
        at::full({1}, loss, at::TensorOptions(at::kDouble).device(this_rank().device));
    return world_->all_reduce({sum}, ReduceOp::kSum, this_rank().compute)
        .wait_on_host()[0]
        .item<double>();
  }

 private:
  ModelSpec spec() const {
    return ModelSpec::from_hf(twin_.folder.empty()
                                  ? nlohmann::json::parse(kConfigs.at(twin_.model))
                                  : nlohmann::json(HfFolder(twin_.folder).config()));
  }

  double micro_step(int64_t first, int64_t last, double weight, bool spoil) {
    const Batch batch = make_batch(model_->decoder.spec(), first, last);
    std::shared_ptr<Saved> saved;
    const auto scored = model_->decoder.logprobs(model_->store, batch.tokens, batch.targets,
                                                 Phase::kForward, false, &saved);
    const double scale = spoil ? std::numeric_limits<double>::infinity() : trainer_->loss_scale();
    model_->decoder.logprobs_backward(model_->store, std::move(saved),
                                      batch.mask * (-weight * scale));
    return -(scored.logp.to(at::kDouble) * batch.mask).sum().item<double>() * weight;
  }

  const Twin& twin_;
  std::shared_ptr<Communicator> world_;
  SlotPool pool_;
  std::unique_ptr<Model> model_;
  std::optional<Trainer> trainer_;
};

/// What happens to an operation of this rank; `armed`: its next reduced gradient gets an inf.
Fault fault_of(const Twin& twin, CommKind kind, std::atomic<bool>& armed) {
  Fault fault;
  if (kind == CommKind::kAllGather && this_rank().rank == 1) {
    fault.delay_result = twin.gather_delay;
  }
  if (kind == CommKind::kReduceScatter || kind == CommKind::kAllReduce) {
    fault.corrupt = [&armed](at::Tensor& written) {
      const bool gradient = written.scalar_type() != at::kDouble && written.numel() > 0;
      if (gradient && armed.exchange(false)) {
        written.fill_(std::numeric_limits<float>::infinity());
      }
    };
  }
  return fault;
}

}  // namespace

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> all = {{"ZeRO-0", 0},
                                            {"ZeRO-1", 1},
                                            {"ZeRO-2", 2},
                                            {"ZeRO-3", 3},
                                            {"MiCS 2", 3, 2},
                                            {"MiCS 4", 3, 4},
                                            {"MiCS 4 hierarchical", 3, 4, true}};
  return all;
}

const std::vector<std::string>& twin_models() {
  static const std::vector<std::string> names = {"opt", "opt-350m", "bloom", "gpt2"};
  return names;
}

std::optional<Twin> placed(Twin twin, const Strategy& strategy, int world) {
  const int shard = strategy.mics_shard == 0 ? world : strategy.mics_shard;
  if (world % shard != 0) {
    return std::nullopt;
  }
  twin.world = world;
  twin.nodes = strategy.mics_shard == 4 ? world / 2 : 1;
  twin.placement = {strategy.zero_stage, shard, strategy.hierarchical};
  return twin;
}

TwinRun run_twin(const Twin& twin) {
  TwinRun result;
  result.steps.resize(twin.steps);
  std::vector<std::atomic<bool>> armed(twin.world);
  const FaultPlan faults = [&](CommKind kind, int64_t, int) {
    return fault_of(twin, kind, armed[this_rank().rank]);
  };
  const auto body = [&](std::shared_ptr<Communicator> world) {
    const int mine = world->rank();
    TwinRank rank(twin, std::move(world));
    for (int step = 0; step < twin.steps; ++step) {
      const bool overflow =
          std::find(twin.overflows.begin(), twin.overflows.end(), step) != twin.overflows.end();
      // Without a reduction there is nothing to corrupt, and copies that are reduced whole
      // are the same on all ranks.
      armed[mine] = overflow && (mine == twin.world - 1 || twin.placement.zero_stage == 0);
      StepRecord record;
      const double loss = rank.step(step, overflow && twin.world == 1, record);
      if (mine == 0) {
        result.losses.push_back(loss);
        result.steps[step] = record;
      }
    }
  };
  on_ranks(twin.world, body, 3 * patience(), faults, twin.nodes);
  return result;
}

double difference(const TwinRun& a, const TwinRun& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto relative = [](double x, double y) {
    return x == y ? 0.0 : std::abs(x - y) / std::max(std::abs(x), std::abs(y));
  };
  double largest = a.losses.size() == b.losses.size() ? 0.0 : kInfinity;
  for (size_t i = 0; i < std::min(a.losses.size(), b.losses.size()); ++i) {
    const StepRecord& x = a.steps[i];
    const StepRecord& y = b.steps[i];
    if (x.applied != y.applied || x.loss_scale != y.loss_scale || !std::isfinite(a.losses[i])) {
      return kInfinity;
    }
    largest = std::max(largest, relative(a.losses[i], b.losses[i]));
    if (x.applied) {
      largest = std::max(largest, relative(x.grad_norm, y.grad_norm));
    }
  }
  return largest;
}

}  // namespace reknit::testing_support
