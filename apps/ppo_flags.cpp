#include "apps/ppo_flags.h"

#include "apps/generation_config.h"
#include "apps/model_settings.h"
#include "apps/outputs.h"
#include "apps/validators.h"
#include "reknit/base/log.h"
#include "reknit/config/json_text.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <tuple>

namespace reknit {
namespace {

constexpr int64_t kDefaultBatch = 16;

const char* kFooter =
    "\nExamples:\n"
    "  reknit ppo --actor opt-350m-sft --critic opt-350m-reward --prompts prompts.jsonl \\\n"
    "      --actor-learning-rate 9.65e-6 --critic-learning-rate 5e-6 --out run\n"
    "  torchrun --no-python --nproc-per-node 4 reknit ppo --actor-zero-stage 3 ... \n"
    "  reknit ppo ... --out run --resume auto        goes on with an interrupted run\n"
    "\nDeepSpeed-Chat's flags of step 3 are taken as well: docs/deepspeed_chat_flags.md says what\n"
    "becomes of each. `_` and `-` are the same in every flag.";

/// What parsing leaves beside the options: whether a flag was given at all.
struct Parsed {
  PpoOptions options;
  std::optional<int64_t> generation_batch;
  std::optional<int64_t> training_batch;
  std::optional<double> learning_rate;
  std::string lr_scheduler;
};

void add_models(CLI::App& app, PpoOptions& o) {
  const std::string group = "Models and data";
  app.add_option("--actor", o.actor_dir, "The policy: a Hugging Face folder")
      ->required()
      ->type_name("DIR")
      ->group(group);
  app.add_option("--critic", o.critic_dir, "Default: the actor's folder with a new value head")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--reference", o.reference_dir, "Frozen (default: the actor's folder)")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--reward", o.reward_dir, "A reward model, frozen (default: the critic's folder)")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--reward-fn", o.reward_fn, "A Python function in its place")
      ->type_name("FILE.py:NAME")
      ->group(group);
  app.add_option("--reward-cmd", o.reward_cmd,
                 "A program in its place: docs/ppo.md says what it reads")
      ->type_name("COMMAND")
      ->group(group);
  app.add_option("--reward-rule", o.reward_rule, "length:N, contains:TEXT, regex:PATTERN or json")
      ->type_name("RULE")
      ->group(group);
  app.add_flag("--allow-random-reward", o.allow_random_reward,
               "Lets the reward model have no trained head")
      ->group(group);
  app.add_option("--prompts", o.prompts, "JSON lines with \"prompt\" or \"messages\"")
      ->required()
      ->type_name("FILE")
      ->group(group);
  app.add_option("--tokenizer", o.tokenizer_dir, "Default: the actor's folder")
      ->type_name("DIR")
      ->group(group);
}

void add_rollout(CLI::App& app, Parsed& p) {
  PpoOptions& o = p.options;
  const std::string group = "Generation";
  app.add_option("--generation-batch", p.generation_batch,
                 "Prompts a rank and generation (default: --batch, else the training batch)")
      ->check(at_least(1))
      ->type_name("B")
      ->group(group);
  app.add_option("--generation-batches", o.generation_batches, "Generations before each update")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--global-batch", o.global_batch,
                 "Prompts of a step over all ranks, in one update (default: generation batch x\n"
                 "ranks x generations)")
      ->check(at_least(1))
      ->type_name("B")
      ->group(group);
  app.add_option("--max-prompt-seq-len", o.max_prompt_len, "Longer prompts are dropped")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-answer-seq-len", o.max_answer_len, "Tokens an answer may have")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--temperature", o.sampling.temperature, "0 is greedy")
      ->check(not_negative())
      ->type_name("X")
      ->capture_default_str()
      ->group(group);
  app.add_option("--top-k", o.sampling.top_k, "0 is off")
      ->check(at_least(0))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--top-p", o.sampling.top_p, "1 is off")
      ->check(number_within(0, 1))
      ->type_name("X")
      ->capture_default_str()
      ->group(group);
  app.add_flag("--unpin-actor-parameters", o.unpin_actor_parameters,
               "Gathers layer by layer while generating: less memory, slower")
      ->group(group);
  app.add_flag("--release-inference-cache", o.release_inference_cache,
               "Frees the cache between generations")
      ->group(group);
  app.add_option("--save-samples", o.save_samples, "Answers a step written to samples.jsonl")
      ->check(at_least(0))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
}

void add_constants(CLI::App& app, PpoOptions& o) {
  const std::string group = "PPO";
  auto number = [&](const char* name, double& value, const char* text) {
    app.add_option(name, value, text)->check(not_negative())->capture_default_str()->group(group);
  };
  number("--kl-ctl", o.kl_ctl, "Weight of the KL term in the reward");
  number("--clip-reward-value", o.clip_reward_value, "Scores are clipped to plus or minus this");
  number("--cliprange", o.cliprange, "Clips the ratio of probabilities");
  number("--cliprange-value", o.cliprange_value, "Clips the change of values");
  number("--gamma", o.gamma, "Discount");
  number("--lam", o.lam, "Lambda of the generalised advantage");
  number("--unsup-coef", o.unsup_coef, "Has no effect: there is no unsupervised loss");
  number("--ema-beta", o.ema_beta, "Decay of the moving average");
  app.add_option("--ppo-epochs", o.ppo_epochs, "Passes over each generation")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_flag("--enable-ema", o.enable_ema, "Also keeps a moving average: actor_ema")
      ->group(group);
  app.add_flag("--align-overflow", o.align_overflow, "Actor and critic skip a step together (fp16)")
      ->group(group);
  app.add_option("--num-padding-at-beginning", o.num_padding_at_beginning,
                 "Has no effect: answers are not padded")
      ->check(at_least(0))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
}

void add_one_model(CLI::App& app, const std::string& name, ModelSettings& model) {
  const std::string group = "Training";
  app.add_option("--" + name + "-learning-rate", model.learning_rate, "Rate of the " + name)
      ->check(not_negative())
      ->type_name("LR")
      ->group(group);
  app.add_option("--" + name + "-weight-decay", model.weight_decay, "Its weight decay (default 0)")
      ->check(not_negative())
      ->type_name("D")
      ->group(group);
  app.add_option("--" + name + "-zero-stage", model.zero_stage,
                 "What is sharded: 0, 1, 2, 3 (default: the config's)")
      ->check(one_of({"0", "1", "2", "3"}))
      ->type_name("S")
      ->group(group);
  app.add_option("--" + name + "-config", model.config_file, "Its own config instead of --config")
      ->type_name("FILE")
      ->group(group);
  app.add_flag("--" + name + "-gradient-checkpointing", model.gradient_checkpointing,
               "Recomputes its blocks in the backward")
      ->group(group);
}

void add_training(CLI::App& app, Parsed& p) {
  const std::string group = "Training";
  app.add_option("--training-batch", p.training_batch,
                 "Sequences of a rank's micro-batch (default: --batch, the config's, else 16)")
      ->check(at_least(1))
      ->type_name("B")
      ->group(group);
  app.add_option("--gradient-accumulation-steps", p.options.gradient_accumulation_steps,
                 "Micro-batches before each update")
      ->check(at_least(1))
      ->type_name("N")
      ->group(group);
  app.add_option("--learning-rate", p.learning_rate, "Rate of both models")
      ->check(not_negative())
      ->type_name("LR")
      ->group(group);
  add_one_model(app, "actor", p.options.actor);
  add_one_model(app, "critic", p.options.critic);
  app.add_option("--lr-scheduler-type", p.lr_scheduler,
                 "constant (default), constant_with_warmup, linear, cosine")
      ->check(one_of({"constant", "constant_with_warmup", "linear", "cosine"}))
      ->type_name("TYPE")
      ->group(group);
  app.add_option("--num-warmup-steps", p.options.num_warmup_steps, "Steps of its warm-up")
      ->check(at_least(0))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
}

void check_files(PpoOptions& o) {
  o.actor_dir = require_model("--actor", o.actor_dir);
  o.critic_dir = require_model("--critic", o.critic_dir);
  o.reference_dir = require_model("--reference", o.reference_dir);
  o.reward_dir = require_model("--reward", o.reward_dir);
  o.tokenizer_dir = require_model("--tokenizer", o.tokenizer_dir);
  for (const std::string& file : o.prompts) {
    if (!std::filesystem::exists(file)) {
      throw InputError(str("--prompts ", file, ": there is no such file"),
                       "check the path; docs/ppo.md shows how a data set of the Hugging Face hub "
                       "becomes a file");
    }
  }
  require_files("--prompts", o.prompts);
  std::string given;
  int rewards = 0;
  for (const auto& [flag, value] : {std::pair{"--reward", &o.reward_dir},
                                    {"--reward-fn", &o.reward_fn},
                                    {"--reward-cmd", &o.reward_cmd},
                                    {"--reward-rule", &o.reward_rule}}) {
    if (!value->empty()) {
      ++rewards;
      given += str(given.empty() ? "" : " and ", flag);
    }
  }
  if (rewards > 1) {
    throw UsageError(str(given, " are given, and there is one reward"), "keep one of them");
  }
  if (rewards == 0 && o.critic_dir.empty()) {
    throw UsageError(
        "there is no reward: neither --reward, --reward-fn, --reward-cmd, "
        "--reward-rule nor --critic is given",
        "pass --reward DIR; the critic's folder serves as reward if it is given");
  }
}

SettingsRequest request_for(const std::string& name, const ModelSettings& model, const Parsed& p) {
  const PpoOptions& o = p.options;
  SettingsRequest request;
  request.model = name;
  if (p.learning_rate && !model.learning_rate) {
    request.flags.push_back({"optimizer.params.lr", *p.learning_rate, "--learning-rate"});
  }
  request.default_batch = kDefaultBatch;
  if (p.training_batch || o.batch) {
    request.flags.push_back({"train_micro_batch_size_per_gpu",
                             p.training_batch ? *p.training_batch : *o.batch,
                             p.training_batch ? "--training-batch" : "--batch"});
  }
  if (o.gradient_accumulation_steps) {
    request.flags.push_back({"gradient_accumulation_steps", *o.gradient_accumulation_steps,
                             "--gradient-accumulation-steps"});
  }
  if (name == "actor" && o.unpin_actor_parameters) {
    request.flags.push_back({"hybrid_engine.pin_parameters", false, "--unpin-actor-parameters"});
  }
  if (name == "actor" && o.release_inference_cache) {
    request.flags.push_back(
        {"hybrid_engine.release_inference_cache", true, "--release-inference-cache"});
  }
  request.defaults.push_back({"optimizer.params.betas", {0.9, 0.95}, "default"});
  if (o.deepspeed_chat) {
    request.on_cuda = Precision::kFp16;
    request.defaults.push_back({"fp16.loss_scale_window", 100, "default"});
  }
  return request;
}

// Both models train on the same answers: the actor's batch sizes are the run's.
void check_critic_batch(const PpoOptions& o) {
  if (o.critic.config_file.empty()) {
    return;
  }
  const nlohmann::json own = read_json_file(o.critic.config_file);
  const BatchSizes& actor = o.actor.reading.batch;
  const BatchSizes& critic = o.critic.reading.batch;
  for (const auto& [key, ours, its] :
       {std::tuple{"train_batch_size", actor.global, critic.global},
        {"train_micro_batch_size_per_gpu", actor.micro, critic.micro},
        {"gradient_accumulation_steps", actor.accumulation, critic.accumulation}}) {
    if (own.contains(key) && own.at(key).is_number() && ours != its) {
      throw UsageError(str("--critic-config: ", key, " = ", its, ", and the actor's is ", ours),
                       "both models train on the same batches: leave the key out, or give the "
                       "actor's value");
    }
  }
}

void choose_schedule(Parsed& p) {
  PpoOptions& o = p.options;
  for (const auto& [name, model] : {std::pair{"actor", &o.actor}, {"critic", &o.critic}}) {
    const std::string& configured = model->reading.config.scheduler.type;
    if (!p.lr_scheduler.empty() && !configured.empty()) {
      throw UsageError(str("--lr-scheduler-type ", p.lr_scheduler, " contradicts scheduler.type = ",
                           configured, " of the ", name, "'s config"),
                       "give the schedule in one place");
    }
  }
  static const std::map<std::string, LrScheduler> types = {
      {"", LrScheduler::kConstant},
      {"constant", LrScheduler::kConstant},
      {"constant_with_warmup", LrScheduler::kConstantWithWarmup},
      {"linear", LrScheduler::kLinear},
      {"cosine", LrScheduler::kCosine}};
  o.lr_scheduler = types.at(p.lr_scheduler);
}

/// DeepSpeed-Chat samples as the actor's folder says.
void choose_sampling(const CLI::App& app, PpoOptions& o) {
  std::set<std::string> given;
  for (const char* flag : {"--temperature", "--top-k", "--top-p"}) {
    if (app.count(flag) > 0) {
      given.insert(flag);
    }
  }
  for (const std::string& line : sample_as_configured(o.actor_dir, given, o.sampling)) {
    if (o.place.leads()) {
      log_info(line);
    }
  }
}

void finish(const CLI::App& app, Parsed& p) {
  PpoOptions& o = p.options;
  check_files(o);
  std::vector<std::string> inputs = {o.actor_dir,         o.critic_dir,        o.reference_dir,
                                     o.reward_dir,        o.tokenizer_dir,     o.resume,
                                     o.actor.config_file, o.critic.config_file};
  inputs.insert(inputs.end(), o.prompts.begin(), o.prompts.end());
  keep_inputs_from_run(o, inputs);
  if (p.training_batch && o.batch && *p.training_batch != *o.batch) {
    throw UsageError(str("--batch ", *o.batch, " contradicts --training-batch ", *p.training_batch),
                     "give --training-batch and --generation-batch, or --batch alone");
  }
  for (auto [name, model] : {std::pair{"actor", &o.actor}, {"critic", &o.critic}}) {
    if (!model->config_file.empty()) {
      require_file(str("--", name, "-config"), model->config_file);
    }
  }
  finish_train(o);
  if (o.deepspeed_chat) {
    choose_sampling(app, o);
  }
  resolve_model_settings(o, request_for("actor", o.actor, p), o.actor);
  resolve_model_settings(o, request_for("critic", o.critic, p), o.critic);
  log_notes(o, {{"actor", &o.actor}, {"critic", &o.critic}});
  o.training_batch = o.actor.reading.batch.micro;
  o.generation_batch = p.generation_batch.value_or(o.batch.value_or(o.training_batch));
  check_critic_batch(o);
  choose_schedule(p);
}

}  // namespace

Action add_ppo(CLI::App& app, std::function<int(const PpoOptions&)> run) {
  auto parsed = std::make_shared<Parsed>();
  add_models(app, parsed->options);
  add_rollout(app, *parsed);
  add_constants(app, parsed->options);
  add_training(app, *parsed);
  add_train_flags(app, parsed->options);
  app.footer(kFooter);
  return [&app, parsed, run = std::move(run)] {
    finish(app, *parsed);
    return run(parsed->options);
  };
}

}  // namespace reknit
