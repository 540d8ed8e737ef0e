// How fast is generation, and how near to what reading weights and cache allows?
//
// Random weights of the shape that a config.json gives, on one GPU: the same prompts with
// the kernels queued one by one and with recorded steps; checks that both give the same
// tokens. Usage: bench_decode CONFIG.json BATCH [PROMPT 256] [NEW 256] [bf16|fp16]
// [TEMPERATURE 1] [EAGER: yes|no]
#include "reknit/engine/hybrid.h"
#include "reknit/engine/model.h"
#include "reknit/engine/runtime.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

struct Job {
  ModelSpec spec;
  int64_t batch = 16;
  int64_t prompt = 256;
  int64_t answer = 256;
  at::ScalarType dtype = at::kBFloat16;
  double temperature = 1.0;
  bool eager = true;
};

double seconds(const std::function<void()>& call) {
  this_rank().compute.synchronize();
  const auto start = std::chrono::steady_clock::now();
  call();
  this_rank().compute.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Norms as they start out, everything else small normal numbers.
void fill(Model& model) {
  Store& store = model.store;
  const auto options = at::TensorOptions(at::kFloat).device(this_rank().device);
  for (GroupId group = 0; group < store.num_groups(); ++group) {
    for (size_t p = 0; p < store.spec(group).params.size(); ++p) {
      const ParamSpec& param = store.spec(group).params[p];
      const at::Tensor values =
          param.decay
              ? at::randn({c10::multiply_integers(param.shape)}, options).mul_(0.02)
              : at::full({c10::multiply_integers(param.shape)},
                         param.name.find("norm.weight") != std::string::npos ? 1.0 : 0.0, options);
      store.write(group, static_cast<int>(p), 0, values);
    }
  }
}

std::vector<GenerationRequest> requests(const Job& job) {
  std::vector<GenerationRequest> all;
  for (int64_t i = 0; i < job.batch; ++i) {
    GenerationRequest request{{}, static_cast<uint64_t>(i)};
    for (int64_t t = 0; t < job.prompt; ++t) {
      request.prompt.push_back((i * 7919 + t * 104729) % (job.spec.vocab - 10) + 5);
    }
    all.push_back(std::move(request));
  }
  return all;
}

/// Bytes that one token must read: all weights but the rows of tables that are only looked
/// up in, and the keys and values of a cache of mean length.
double bytes_per_token(const Job& job, const Store& store) {
  double bytes = 0;
  for (GroupId group = 0; group < store.num_groups(); ++group) {
    for (const ParamSpec& param : store.spec(group).params) {
      const bool looked_up = param.name.find("position") != std::string::npos ||
                             (!job.spec.tied_output() && group == 0);
      bytes += looked_up ? 0.0 : 2.0 * static_cast<double>(c10::multiply_integers(param.shape));
    }
  }
  const double tokens = static_cast<double>(job.prompt) + static_cast<double>(job.answer) / 2;
  return bytes + 4.0 *
                     static_cast<double>(job.batch * job.spec.layers * job.spec.kv_heads *
                                         job.spec.head_dim()) *
                     tokens;
}

double copy_rate() {
  const at::Tensor from =
      at::zeros({int64_t{1} << 30}, at::TensorOptions(at::kByte).device(this_rank().device));
  const at::Tensor to = at::empty_like(from);
  to.copy_(from);
  return 2.0 * 20 * static_cast<double>(from.nbytes()) / seconds([&] {
           for (int i = 0; i < 20; ++i) {
             to.copy_(from);
           }
         });
}

struct Timed {
  double first = 0;  ///< seconds of prefill and first token
  double whole = 0;
  std::vector<Generation> answers;
};

Timed time_of(Model& model, const Job& job, bool record) {
  Hybrid hybrid(model.decoder, model.store, {.record_steps = record});
  const std::vector<GenerationRequest> prompts = requests(job);
  SamplingSettings sampling{.max_new_tokens = job.answer, .temperature = job.temperature};
  Timed timed;
  GenerateLease lease = hybrid.enter_generation();
  const auto run = [&](int64_t tokens) {
    sampling.max_new_tokens = tokens;
    timed.answers = lease.generate(prompts, job.batch, sampling);
  };
  run(1);
  timed.first = seconds([&] { run(1); });
  run(job.answer);  // takes memory, and records
  timed.whole = seconds([&] { run(job.answer); });
  return timed;
}

int64_t different_tokens(const Timed& a, const Timed& b) {
  int64_t different = 0;
  for (size_t i = 0; i < a.answers.size(); ++i) {
    for (size_t t = 0; t < a.answers[i].tokens.size(); ++t) {
      different += a.answers[i].tokens[t] != b.answers[i].tokens[t] ? 1 : 0;
    }
  }
  return different;
}

void print(const Job& job, const char* how, const Timed& timed, double floor) {
  const double whole = timed.whole / static_cast<double>(job.answer);
  const double step = (timed.whole - timed.first) / static_cast<double>(job.answer - 1);
  std::printf(
      "%-9s batch %3ld  %ld+%ld  first %.1f ms  whole %.3f ms/token  decode %.3f ms/token"
      "  %.0f tokens/s  %.0f %% of the bytes' limit\n",
      how, job.batch, job.prompt, job.answer, timed.first * 1e3, whole * 1e3, step * 1e3,
      static_cast<double>(job.batch) / whole, 100 * floor / step);
}

void run(RankEnvironment& environment, const Job& job) {
  SlotPool pool(environment.allocator);
  const auto model = make_model(job.spec, {.name = "model", .dtype = job.dtype, .training = false},
                                StoreComms::over(environment.world, 1), pool);
  pool.seal();
  fill(*model);
  const double floor = bytes_per_token(job, model->store) / copy_rate();
  const Timed recorded = time_of(*model, job, true);
  print(job, "recorded", recorded, floor);
  if (job.eager) {
    const Timed eager = time_of(*model, job, false);
    print(job, "one by one", eager, floor);
    std::printf("tokens that differ: %ld\n", different_tokens(recorded, eager));
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace reknit

int main(int argc, char** argv) {
  using namespace reknit;
  try {
    require<UsageError>(argc >= 3,
                        "bench_decode CONFIG.json BATCH [PROMPT] [NEW] [bf16|fp16] "
                        "[TEMPERATURE] [EAGER]");
    Job job;
    std::ifstream file(argv[1]);
    job.spec = ModelSpec::from_hf(nlohmann::json::parse(file));
    job.batch = std::stol(argv[2]);
    job.prompt = argc > 3 ? std::stol(argv[3]) : job.prompt;
    job.answer = argc > 4 ? std::stol(argv[4]) : job.answer;
    job.dtype = argc > 5 && std::string(argv[5]) == "fp16" ? at::kHalf : job.dtype;
    job.temperature = argc > 6 ? std::stod(argv[6]) : job.temperature;
    job.eager = argc <= 7 || std::string(argv[7]) != "no";
    run_on_ranks({.devices = {c10::Device(c10::kCUDA, 0)}},
                 [&](RankEnvironment& environment) { run(environment, job); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
