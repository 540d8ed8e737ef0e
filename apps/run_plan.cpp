// reknit plan: memory, bytes and seconds of a run that has not started.
#include "apps/plan_flags.h"
#include "apps/planning.h"
#include "apps/session.h"
#include "reknit/base/format.h"
#include "reknit/checkpoint/json_text.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <iostream>

namespace reknit {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownOptions = 20;

PlanRequest request_of(const PlanOptions& o) {
  const ModelSpec spec = ModelSpec::from_hf(read_json_object(o.model));
  const BatchSizes& batch = o.settings.reading.batch;
  const bool ppo = o.phase == "ppo";
  constexpr int64_t kUsual = 2048;
  const int64_t longest = spec.max_positions > 0 ? std::min(spec.max_positions, kUsual) : kUsual;
  PlanRequest request;
  request.topology = {static_cast<int>(o.ranks), static_cast<int>(o.nodes)};
  request.batch = {batch.micro,
                   ppo ? o.max_prompt_len + o.max_answer_len : o.sequence.value_or(longest)};
  request.micro_batches = batch.accumulation;
  request.cuda = o.run.place.cuda;
  spec.require_length(request.batch.length);
  if (ppo) {
    const ModelSpec critic =
        o.critic.empty() ? spec : ModelSpec::from_hf(read_json_object(o.critic));
    request.models = planned_ppo(spec, critic, o.settings, o.settings, o.ranks);
    request.generation = PlannedGeneration{.sequences = o.generation_batch.value_or(batch.micro),
                                           .prompt = o.max_prompt_len,
                                           .answer = o.max_answer_len,
                                           .hybrid = hybrid_settings(o.settings)};
  } else {
    request.models = {planned_model("model", spec, o.settings, o.ranks, true)};
  }
  return request;
}

std::vector<std::pair<const char*, int64_t>> categories(const MemoryPlan& m) {
  return {{"weights", m.weights},       {"masters", m.masters},
          {"gradients", m.gradients},   {"moments", m.moments},
          {"slots", m.slots},           {"pinned", m.pinned},
          {"kv_cache", m.kv_cache},     {"activations", m.activations},
          {"workspaces", m.workspaces}, {"library", m.library}};
}

std::vector<std::pair<const char*, CommCounts::Entry>> operations(const StepTraffic& t) {
  return {{"gathers", t.gathers},
          {"reductions", t.reductions},
          {"boundary", t.boundary},
          {"publishing", t.publishing}};
}

Json json_of(const PlanRequest& request, const Hardware& hardware, bool fits) {
  const MemoryPlan memory = plan_memory(request);
  const TimePlan time = plan_time(request, hardware);
  Json out = {{"fits", fits},
              {"gpu", request.cuda ? Json(hardware.name) : Json()},
              {"limit_bytes", hardware.memory},
              {"total_bytes", memory.total()},
              {"peak_bytes", memory.pools()}};
  for (const auto& [name, bytes] : categories(memory)) {
    out["memory"][name] = bytes;
  }
  for (const auto& [name, moved] : operations(plan_traffic(request))) {
    out["traffic"][name] = {{"count", moved.count},
                            {"bytes", moved.bytes},
                            {"inside", moved.inside},
                            {"across", moved.across}};
  }
  if (!request.cuda) {
    return out;
  }
  out["seconds"] = {
      {"train", time.train()},     {"compute", time.compute}, {"communication", time.communication},
      {"boundary", time.boundary}, {"update", time.update},   {"error", 0.4}};
  if (request.generation) {
    out["seconds"]["generate_at_least"] = time.generate_at_least;
  }
  return out;
}

Json json_of(const std::vector<PlanOption>& options, const Hardware& hardware) {
  Json all = Json::array();
  for (const PlanOption& option : options) {
    all.push_back({{"change", option.change},
                   {"total_bytes", option.memory.total()},
                   {"train_seconds", plan_time(option.request, hardware).train()}});
  }
  return all;
}

void print_memory(const MemoryPlan& memory, const Hardware& hardware) {
  std::printf("memory of a rank:\n");
  for (const auto& [name, bytes] : categories(memory)) {
    std::printf("  %-12s %14s\n", name, gigabytes(bytes).c_str());
  }
  std::printf("  %-12s %14s of %s\n", "total", gigabytes(memory.total()).c_str(),
              gigabytes(hardware.memory).c_str());
  std::printf("  exact: %s of it (weights to kv_cache), peak_bytes of metrics.jsonl\n",
              gigabytes(memory.pools()).c_str());
}

void print_traffic(const StepTraffic& traffic) {
  std::printf("moved in a step by the rank that moves most over the network:\n");
  std::printf("  %-12s %10s %14s %14s %14s\n", "", "operations", "payload", "from its node",
              "from others");
  for (const auto& [name, moved] : operations(traffic)) {
    std::printf("  %-12s %10lld %14s %14s %14s\n", name, static_cast<long long>(moved.count),
                gigabytes(moved.bytes).c_str(), gigabytes(moved.inside).c_str(),
                gigabytes(moved.across).c_str());
  }
}

void print_time(const TimePlan& time, bool generates) {
  std::printf(
      "seconds a step, within 40 %%: %.3f (products %.3f, collectives beside them %.3f, "
      "collectives alone %.3f, update %.3f)\n",
      time.train(), time.compute, time.communication, time.boundary, time.update);
  if (generates) {
    std::printf("generation adds at least %.3f s\n", time.generate_at_least);
  }
}

void print_options(const char* title, const std::vector<PlanOption>& options,
                   const Hardware& hardware) {
  std::printf("%s\n", title);
  for (size_t i = 0; i < std::min(options.size(), kShownOptions); ++i) {
    std::printf("  %s: %s a rank, %.3f s a step\n", options[i].change.c_str(),
                gigabytes(options[i].memory.total()).c_str(),
                plan_time(options[i].request, hardware).train());
  }
}

void print_plan(const PlanOptions& o, const PlanRequest& request, bool fits) {
  const MemoryPlan memory = plan_memory(request);
  std::printf("%s, %.1f million parameters; %s on %s; %s of %s x %s a rank\n",
              request.models.front().spec.model_type.c_str(),
              static_cast<double>(num_parameters(request.models.front().spec)) / 1e6,
              plural(o.ranks, "rank").c_str(), plural(o.nodes, "node").c_str(),
              plural(request.batch.sequences, "sequence").c_str(),
              plural(request.batch.length, "token").c_str(),
              plural(request.micro_batches, "micro-step").c_str());
  if (request.cuda) {
    std::printf("GPU %s%s: %s of memory, receives %s/s from its node and %s/s from others\n",
                o.hardware.name.c_str(), o.gpu.empty() ? " (assumed: --gpu names another)" : "",
                gigabytes(o.hardware.memory).c_str(),
                gigabytes(static_cast<int64_t>(o.hardware.link)).c_str(),
                gigabytes(static_cast<int64_t>(o.hardware.network)).c_str());
  }
  print_memory(memory, o.hardware);
  print_traffic(plan_traffic(request));
  if (request.cuda) {
    print_time(plan_time(request, o.hardware), request.generation.has_value());
  }
  if (fits) {
    std::printf("fits, with %s to spare\n", gigabytes(o.hardware.memory - memory.total()).c_str());
    return;
  }
  std::printf("does not fit: %s too much\n", gigabytes(memory.total() - o.hardware.memory).c_str());
  const auto options = options_that_fit(request, o.hardware.memory);
  print_options(options.empty() ? "no single change that is known here makes it fit"
                                : "each of these makes it fit:",
                options, o.hardware);
}

}  // namespace

int run_plan(const PlanOptions& o) {
  const PlanRequest request = request_of(o);
  const bool fits = plan_memory(request).total() <= o.hardware.memory;
  const std::vector<PlanOption> found =
      o.sweep ? sweep(request, o.hardware) : std::vector<PlanOption>();
  if (o.json) {
    Json out = json_of(request, o.hardware, fits);
    if (!fits) {
      out["options"] = json_of(options_that_fit(request, o.hardware.memory), o.hardware);
    }
    if (o.sweep) {
      out["sweep"] = json_of(found, o.hardware);
    }
    std::cout << out.dump(2) << std::endl;
  } else {
    print_plan(o, request, fits);
    if (o.sweep) {
      print_options(
          found.empty() ? "no setting fits" : "settings that fit, most tokens a second first:",
          found, o.hardware);
    }
    std::fflush(stdout);
  }
  return fits ? 0 : static_cast<int>(ExitCode::kUsage);
}

}  // namespace reknit
