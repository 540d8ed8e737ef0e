// How fast is training, in tokens, arithmetic and memory, and which part takes how long?
//
// Random weights of the shape that a config.json gives, random tokens, the same batch in every
// step: the trainer that `reknit pretrain` runs, with AdamW and clipping, ZeRO-3 over thread
// ranks with a GPU each (NCCL), or on one GPU without sharding. Steps are timed first without
// any wait but the step's own; then a few more are taken apart.
// Usage: bench_train CONFIG.json GPUS MICRO_BATCH LENGTH [steps=20] [recompute] [fp16] [free]
//   free   lets kernels add in any order, to see what determinism costs
#include "reknit/engine/flops.h"
#include "reknit/engine/lm_trainer.h"
#include "reknit/engine/runtime.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

namespace reknit {
namespace {

constexpr int kWarmUp = 4;
constexpr int kTakenApart = 4;

struct Job {
  ModelSpec spec;
  int gpus = 1;
  int64_t micro_batch = 8;
  int64_t length = 2048;
  int steps = 20;
  bool recompute = false;
  bool free_order = false;
  at::ScalarType dtype = at::kBFloat16;
};

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Norms as they start out, everything else normal numbers of the model's own spread.
void fill(Model& model) {
  Store& store = model.store;
  const auto options = at::TensorOptions(at::kFloat).device(this_rank().device);
  at::manual_seed(1);
  for (GroupId group = 0; group < store.num_groups(); ++group) {
    for (size_t p = 0; p < store.spec(group).params.size(); ++p) {
      const ParamSpec& param = store.spec(group).params[p];
      const int64_t numel = c10::multiply_integers(param.shape);
      const bool scale = param.name.find("norm.weight") != std::string::npos;
      store.write(group, static_cast<int>(p), 0,
                  param.decay ? at::randn({numel}, options).mul_(0.02)
                              : at::full({numel}, scale ? 1.0 : 0.0, options));
    }
  }
}

std::vector<LmSequence> sequences(const Job& job) {
  std::mt19937_64 random(static_cast<uint64_t>(this_rank().rank) + 1);
  std::vector<LmSequence> all;
  for (int64_t i = 0; i < job.micro_batch; ++i) {
    std::vector<int64_t> sample;
    for (int64_t t = 0; t <= job.length; ++t) {
      sample.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(job.spec.vocab)));
    }
    all.push_back(lm_sequence(sample, static_cast<uint64_t>(this_rank().rank * job.micro_batch + i),
                              DocumentRules{}));
  }
  return all;
}

LmSettings settings_of(const Job& job, bool timed) {
  LmSettings settings;
  settings.micro_batch = job.micro_batch;
  settings.checkpointing = job.recompute ? Checkpointing::kFull : Checkpointing::kNone;
  settings.dropout = false;
  settings.timed = timed;
  settings.trainer.lr = 1e-5;
  settings.trainer.optimizer.kind = AdamSettings{};
  return settings;
}

void print_memory(const Model& model, const SlotPool& pool) {
  const auto stats =
      c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(this_rank().device.index());
  constexpr double kGb = 1e9;
  std::printf("memory     shards %.1f GB, slots %.1f GB, torch's allocator at most %.1f GB\n",
              static_cast<double>(model.store.shard_bytes()) / kGb,
              static_cast<double>(pool.total_bytes()) / kGb,
              static_cast<double>(stats.allocated_bytes[0].peak) / kGb);
}

struct Run {
  double seconds = 0;  ///< of a step
  std::vector<double> losses;
};

Run run_steps(LmTrainer& trainer, const Job& job, const std::vector<LmSequence>& mine) {
  Run run;
  const int64_t batch = job.micro_batch * job.gpus;
  double start = 0;
  for (int step = 0; step < job.steps; ++step) {
    if (step == kWarmUp) {
      this_rank().compute.synchronize();
      start = seconds();
    }
    run.losses.push_back(trainer.step(step, batch, mine).loss);
  }
  this_rank().compute.synchronize();
  run.seconds = (seconds() - start) / (job.steps - kWarmUp);
  return run;
}

LmTimes take_apart(LmTrainer& trainer, const Job& job, const std::vector<LmSequence>& mine) {
  LmTimes sum;
  for (int step = 0; step <= kTakenApart; ++step) {
    const LmTimes times = trainer.step(step, job.micro_batch * job.gpus, mine).times;
    if (step > 0) {
      sum.forward_s += times.forward_s / kTakenApart;
      sum.backward_s += times.backward_s / kTakenApart;
      sum.reduce_s += times.reduce_s / kTakenApart;
      sum.update_s += times.update_s / kTakenApart;
    }
  }
  return sum;
}

void print(const Job& job, const Run& run, const LmTimes& parts) {
  const auto tokens = static_cast<double>(job.micro_batch * job.length);
  const double flops = static_cast<double>(job.micro_batch) *
                       training_flops(job.spec, job.length, settings_of(job, false).checkpointing);
  std::printf(
      "reknit     GPUs %d, batch %ld x %ld%s%s: %.1f ms a step, %.0f tokens/s a GPU, "
      "%.0f TFLOP/s\n",
      job.gpus, job.micro_batch, job.length, job.recompute ? ", recomputed" : "",
      job.free_order ? ", sums in any order" : "", run.seconds * 1e3, tokens / run.seconds,
      flops / run.seconds / 1e12);
  std::printf(
      "parts      forward %.1f ms, backward %.1f ms, wait for gradients %.1f ms, "
      "update %.1f ms\n",
      parts.forward_s * 1e3, parts.backward_s * 1e3, parts.reduce_s * 1e3, parts.update_s * 1e3);
  std::printf("losses    ");
  for (const double loss : run.losses) {
    std::printf(" %.4f", loss);
  }
  std::printf("\n");
}

void run(RankEnvironment& environment, const Job& job) {
  if (job.free_order) {
    at::globalContext().setDeterministicAlgorithms(false, false);
  }
  SlotPool pool(environment.allocator);
  StoreSettings store{.name = "model", .dtype = job.dtype};
  store.placement.shard_size = job.gpus;
  const auto model =
      make_model(job.spec, store, StoreComms::over(environment.world, job.gpus), pool);
  pool.seal();
  fill(*model);
  const std::vector<LmSequence> mine = sequences(job);
  Run untouched;
  LmTimes parts;
  {
    LmTrainer trainer(*model, settings_of(job, false));
    untouched = run_steps(trainer, job, mine);
  }
  {
    LmTrainer trainer(*model, settings_of(job, true));
    parts = take_apart(trainer, job, mine);
  }
  if (this_rank().rank == 0) {
    print(job, untouched, parts);
    print_memory(*model, pool);
    std::fflush(stdout);
  }
}

Job job_of(int argc, char** argv) {
  require<UsageError>(argc >= 5,
                      "bench_train CONFIG.json GPUS MICRO_BATCH LENGTH [steps=N] "
                      "[recompute] [fp16] [free]");
  Job job;
  std::ifstream file(argv[1]);
  job.spec = ModelSpec::from_hf(nlohmann::json::parse(file));
  job.gpus = std::stoi(argv[2]);
  job.micro_batch = std::stol(argv[3]);
  job.length = std::stol(argv[4]);
  for (int i = 5; i < argc; ++i) {
    const std::string word = argv[i];
    job.recompute = job.recompute || word == "recompute";
    job.free_order = job.free_order || word == "free";
    job.dtype = word == "fp16" ? at::kHalf : job.dtype;
    job.steps = word.starts_with("steps=") ? std::stoi(word.substr(6)) : job.steps;
  }
  require<UsageError>(job.steps > kWarmUp, job.steps, " steps: the first ", kWarmUp,
                      " are not timed");
  return job;
}

}  // namespace
}  // namespace reknit

int main(int argc, char** argv) {
  using namespace reknit;
  try {
    const Job job = job_of(argc, argv);
    RankPlan plan;
    for (int gpu = 0; gpu < job.gpus; ++gpu) {
      plan.devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
    }
    run_on_ranks(plan, [&](RankEnvironment& environment) { run(environment, job); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
