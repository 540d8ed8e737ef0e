#include "apps/plan_flags.h"

#include "apps/model_settings.h"
#include "apps/validators.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>

namespace reknit {
namespace {

/// Bytes of this machine.
int64_t host_memory() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

const char* kFooter =
    "\nExamples:\n"
    "  reknit plan --model config.json --config ds_config.json --ranks 192 --nodes 24 \\\n"
    "      --gpu h100-80g --batch 4 --seq-length 2048\n"
    "  reknit plan --model opt-1.3b --ranks 8 --gpu a100-80g --sweep\n"
    "  reknit plan --model opt-1.3b --ranks 4 --phase ppo --gpu h200 --json\n"
    "\nMemory that Reknit takes for itself is exact; activations, library memory and seconds are\n"
    "estimates (docs/plan.md). Exit code 0: it fits; 2: it does not, with the changes that help.";

struct Parsed {
  PlanOptions options;
  std::string memory, link, network;
};

void add_job(CLI::App& app, PlanOptions& o) {
  const std::string group = "Job";
  app.add_option("--model", o.model,
                 "A Hugging Face folder, its config.json alone, or a\nname in the local cache")
      ->required()
      ->type_name("DIR|FILE")
      ->group(group);
  app.add_option("--critic", o.critic, "ppo: default the same model with a value head")
      ->type_name("DIR|FILE")
      ->group(group);
  app.add_option("--phase", o.phase, "pretrain: one model in training; ppo: all four of PPO")
      ->check(one_of({"pretrain", "ppo"}))
      ->type_name("P")
      ->capture_default_str()
      ->group(group);
  app.add_option("--config", o.run.config_file, "A DeepSpeed JSON config")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--set", o.run.sets, "Overrides one key of it: zero_optimization.stage=3")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  app.add_option("--dtype", o.run.dtype, "fp32, bf16, fp16 (default: the config's; else bf16)")
      ->check(one_of({"fp32", "bf16", "fp16"}))
      ->type_name("T")
      ->group(group);
  app.add_option("--batch", o.run.batch, "Sequences of a micro-batch (default: the config's; 1)")
      ->check(at_least(1))
      ->type_name("B")
      ->group(group);
  app.add_option("--seq-length", o.sequence, "Tokens of a sequence (default: the model's, <= 2048)")
      ->check(at_least(1))
      ->type_name("L")
      ->group(group);
  app.add_option("--max-prompt-seq-len", o.max_prompt_len, "ppo: tokens of a prompt")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-answer-seq-len", o.max_answer_len, "ppo: tokens of an answer")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--generation-batch", o.generation_batch, "ppo: answers at a time (default: B)")
      ->check(at_least(1))
      ->type_name("B")
      ->group(group);
  app.add_flag("--gradient-checkpointing", o.recompute, "Recomputes blocks in the backward")
      ->group(group);
}

void add_machine(CLI::App& app, Parsed& p) {
  PlanOptions& o = p.options;
  const std::string group = "Machine";
  constexpr int64_t kMostRanks = 1 << 20;
  app.add_option("--ranks", o.ranks, "Ranks, a GPU each")
      ->check(at_least(1, kMostRanks))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--nodes", o.nodes, "Equal nodes they are spread over")
      ->check(at_least(1, kMostRanks))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--device", o.run.device, "cpu or cuda (default: cuda)")
      ->check(one_of({"cpu", "cuda"}))
      ->type_name("D")
      ->group(group);
  app.add_option("--gpu", o.gpu, "h100-80g (default), h200 or a100-80g")
      ->check(one_of(Hardware::names()))
      ->type_name("NAME")
      ->group(group);
  app.add_option("--memory", p.memory, "Of another GPU: 80GB")->type_name("BYTES")->group(group);
  app.add_option("--link", p.link, "What a rank receives from its node: 400GB/s")
      ->type_name("RATE")
      ->group(group);
  app.add_option("--network", p.network, "What a rank receives from other nodes: 50GB/s")
      ->type_name("RATE")
      ->group(group);
}

void finish(Parsed& p) {
  PlanOptions& o = p.options;
  if (o.ranks % o.nodes != 0) {
    throw UsageError(
        str("--ranks ", o.ranks, " cannot be spread over --nodes ", o.nodes, " evenly"),
        "give a multiple of the nodes");
  }
  o.model = require_model_config("--model", o.model);
  o.critic = require_model_config("--critic", o.critic);
  if (!o.run.config_file.empty()) {
    require_file("--config", o.run.config_file);
  }
  o.hardware = Hardware::of(o.gpu.empty() ? "h100-80g" : o.gpu);
  if (!p.memory.empty()) {
    o.hardware.memory = static_cast<int64_t>(parse_bytes("--memory", p.memory, false));
  }
  if (!p.link.empty()) {
    o.hardware.link = parse_bytes("--link", p.link, true);
  }
  if (!p.network.empty()) {
    o.hardware.network = parse_bytes("--network", p.network, true);
  }
  o.run.place.cuda = o.run.device != "cpu";
  if (!o.run.place.cuda && p.memory.empty()) {
    o.hardware.memory = host_memory() / std::max<int64_t>(1, o.ranks / o.nodes);
  }
  o.run.place.ranks = o.ranks;
  o.run.place.ranks_from = "--ranks";
  o.run.place.nodes = o.nodes;
  o.run.place.nodes_from = "--nodes";
  SettingsRequest request;
  request.default_batch = 1;
  if (o.run.batch) {
    request.flags.push_back({"train_micro_batch_size_per_gpu", *o.run.batch, "--batch"});
  }
  request.defaults.push_back({"optimizer.params.lr", 1e-4, "default"});  // no plan depends on it
  o.settings.gradient_checkpointing = o.recompute;
  resolve_model_settings(o.run, request, o.settings);
  log_notes(o.run, {{"", &o.settings}});
}

}  // namespace

double parse_bytes(const std::string& flag, const std::string& text, bool per_second) {
  static const std::map<std::string, double> units = {
      {"", 1},      {"B", 1},        {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  if (per_second && unit.ends_with("/s")) {
    unit.resize(unit.size() - 2);
  }
  const auto found = units.find(unit);
  if (error != std::errc() || found == units.end() || !(number > 0) || number > 1e15) {
    throw UsageError(
        str(flag, " ", text, " is not a number of bytes", per_second ? " a second" : ""),
        per_second ? "write it as 400GB/s" : "write it as 80GB or 80GiB");
  }
  return number * found->second;
}

Action add_plan(CLI::App& app, std::function<int(const PlanOptions&)> run) {
  auto parsed = std::make_shared<Parsed>();
  add_job(app, parsed->options);
  add_machine(app, *parsed);
  app.add_flag("--sweep", parsed->options.sweep,
               "Lists the settings that fit, most tokens a second first");
  app.add_flag("--json", parsed->options.json, "One JSON object instead of text");
  app.footer(kFooter);
  return [parsed, run = std::move(run)] {
    finish(*parsed);
    return run(parsed->options);
  };
}

}  // namespace reknit
