// reknit ppo: four models from their folders, the loop, the run folder.
#include "apps/commands.h"
#include "apps/planning.h"
#include "apps/ppo_inputs.h"
#include "apps/ppo_monitor.h"
#include "apps/ppo_reward.h"
#include "apps/session.h"
#include "apps/signals.h"
#include "apps/tracing.h"
#include "apps/train_run.h"
#include "reknit/base/format.h"
#include "reknit/base/log.h"
#include "reknit/checkpoint/run_folder.h"
#include "reknit/rlhf/ppo_check.h"
#include "reknit/rlhf/ppo_report.h"

#include <nlohmann/json.hpp>

#include <optional>

namespace reknit {
namespace {

int64_t global_batch(const PpoOptions& o) {
  if (o.global_batch) {
    return *o.global_batch;
  }
  // Both factors on the left are below 2^31 and 2^12.
  int64_t whole = o.generation_batch * o.place.ranks;
  if (__builtin_mul_overflow(whole, o.generation_batches, &whole) || whole > INT32_MAX) {
    throw UsageError(
        str("--generation-batches ", o.generation_batches, " of ", o.generation_batch,
            " prompts on ", plural(o.place.ranks, "rank"), " are more than a step can have"),
        "lower --generation-batches or --generation-batch");
  }
  return whole;
}

// What the batch sizes ask an update to have, over all ranks.
int64_t wanted_minibatch(const PpoOptions& o) {
  const BatchSizes& batch = o.actor.reading.batch;
  return batch.micro * batch.accumulation * o.place.ranks;
}

// Prompts of an update over all ranks.
int64_t minibatch(const PpoOptions& o) {
  const int64_t whole = global_batch(o);
  if (o.global_batch) {
    return whole;
  }
  return std::min(whole, wanted_minibatch(o));
}

// What the config's batch sizes ask for, where a step has fewer prompts than that.
void say_smaller_update(const PpoOptions& o) {
  const BatchSizes& batch = o.actor.reading.batch;
  const int64_t wanted = wanted_minibatch(o);
  if (!o.global_batch && wanted > minibatch(o)) {
    log_once("an update takes the ", plural(minibatch(o), "prompt"), " of its step, not ", wanted,
             " (micro-batch x accumulation x ranks = ", batch.micro, " x ", batch.accumulation,
             " x ", o.place.ranks, "): --generation-batches makes steps that large");
  }
}

int64_t total_steps(const PpoOptions& o, const PpoInputs& inputs) {
  const auto prompts = static_cast<int64_t>(inputs.prompts.size());
  const int64_t batch = std::min(global_batch(o), prompts);
  return o.steps.value_or((prompts * o.num_train_epochs + batch - 1) / batch);
}

Schedule schedule(const PpoOptions& o, const PpoInputs& inputs, const ModelSettings& model,
                  int64_t steps) {
  const int64_t batch = std::min(global_batch(o), static_cast<int64_t>(inputs.prompts.size()));
  const int64_t updates = steps * ((batch + minibatch(o) - 1) / minibatch(o)) * o.ppo_epochs;
  if (!model.reading.config.scheduler.type.empty()) {
    return configured_schedule(model, updates);
  }
  constexpr ScheduleKind kKinds[] = {ScheduleKind::kConstant, ScheduleKind::kConstantWithWarmup,
                                     ScheduleKind::kLinear, ScheduleKind::kCosine};
  return {.kind = kKinds[static_cast<int>(o.lr_scheduler)],
          .warmup = o.num_warmup_steps,
          .total = updates};
}

Checkpointing checkpointing(const ModelSettings& model) {
  return model.gradient_checkpointing ? Checkpointing::kFull : Checkpointing::kNone;
}

PpoSettings ppo_settings(const PpoOptions& o, const PpoInputs& inputs, int64_t steps) {
  PpoSettings settings;
  settings.rules = o.deepspeed_chat ? PpoRules::kDeepSpeedChat : PpoRules::kStrict;
  settings.constants = {o.kl_ctl, o.clip_reward_value, o.cliprange, o.cliprange_value, o.gamma,
                        o.lam};
  settings.sampling =
      sampling_settings(o.sampling, o.max_answer_len, o.seed, inputs.actor, inputs.tokenizer);
  settings.global_batch = global_batch(o);
  settings.minibatch = minibatch(o);
  settings.micro_batch = o.training_batch;
  settings.generate_batch = o.generation_batch;
  settings.ppo_epochs = static_cast<int>(o.ppo_epochs);
  settings.seed = static_cast<uint64_t>(o.seed);
  if (o.enable_ema) {
    settings.ema_beta = o.ema_beta;
  }
  settings.align_overflow = o.align_overflow;
  settings.hybrid = hybrid_settings(o.actor);
  settings.actor_checkpointing = checkpointing(o.actor);
  settings.critic_checkpointing = checkpointing(o.critic);
  settings.actor = trainer_settings("actor", o.actor, schedule(o, inputs, o.actor, steps));
  settings.critic = trainer_settings("critic", o.critic, schedule(o, inputs, o.critic, steps));
  return settings;
}

/// The four models of a rank and the pool between them.
struct RankModels {
  SlotPool pool;
  std::unique_ptr<Model> actor, critic, reference, reward;

  RankModels(const PpoOptions& o, const PpoInputs& inputs, RankEnvironment& environment)
      : pool(environment.allocator) {
    actor = make("actor", inputs.actor, o.actor, environment, true, false);
    critic = make("critic", inputs.critic, o.critic, environment, true, true);
    reference = make("reference", inputs.reference, o.actor, environment, false, false);
    if (inputs.reward) {
      reward = make("reward", *inputs.reward, o.critic, environment, false, true);
    }
    pool.seal();
    const auto seed = static_cast<uint64_t>(o.seed);
    load_model(*actor, inputs.actor, ValueHead::kNone, seed);
    load_model(*critic, inputs.critic, ValueHead::kNewIfAbsent, seed);
    load_model(*reference, inputs.reference, ValueHead::kNone, seed);
    if (reward) {
      load_model(*reward, *inputs.reward,
                 o.allow_random_reward ? ValueHead::kNewIfAbsent : ValueHead::kRequired, seed + 1);
    }
  }

  PpoModels all() { return {actor.get(), critic.get(), reference.get(), reward.get()}; }

 private:
  std::unique_ptr<Model> make(const char* name, const HfFolder& folder,
                              const ModelSettings& settings, RankEnvironment& environment,
                              bool training, bool value_head) {
    const StoreSettings store = store_settings(name, settings, environment, training);
    return make_model(model_spec(folder, value_head), store,
                      StoreComms::over(environment.world, store.placement), pool);
  }
};

std::string config_of(const PpoOptions& options) {
  return str("{\"actor\": ", options.actor.resolved_json,
             ", \"critic\": ", options.critic.resolved_json, "}\n");
}

class RankRun final : public TrainRun {
 public:
  RankRun(const PpoOptions& options, const PpoInputs& inputs, const PpoSettings& settings,
          RankEnvironment& environment, RunFolder& folder)
      : TrainRun(options, *environment.world, folder),
        options_(options),
        inputs_(inputs),
        steps_(total_steps(options, inputs)),
        settings_(settings),
        models_(options, inputs, environment),
        ppo_(models_.all(), settings_, inputs.prompts,
             make_score(options, inputs.tokenizer, inputs.others)),
        monitor_(options, leader()) {
    if (ppo_.global_batch() < settings_.global_batch) {
      log_once("there are fewer prompts than a step could take: each step takes all ",
               ppo_.global_batch(), " once");
      settings_.global_batch = ppo_.global_batch();
    }
    say_smaller_update(options);
    if (leader() && options.save_interval) {
      read_judge_files();
    }
  }

 private:
  Plan plan() const override {
    const DeepSpeedConfig& config = options_.actor.reading.config;
    return {"ppo", steps_, 1, config.comms_logger, config.steps_per_print};
  }
  std::string config() const override { return config_of(options_); }
  std::string headline() const override {
    return str("ppo: ", plural(world().size(), "rank"), ", ", plural(steps_, "step"), " of ",
               plural(settings_.global_batch, "prompt"), ", ",
               plural(static_cast<int64_t>(inputs_.prompts.size()), "prompt"), " in all");
  }

  void take_step(int64_t step) override {
    record_ = ppo_.step(step);
    record_.peak_bytes += models_.pool.total_bytes();  // as large on every rank
    save_samples(record_.step);
  }
  nlohmann::ordered_json metrics() const override {
    return metrics_of(record_, settings_.global_batch);
  }
  void written(const nlohmann::ordered_json& line) override {
    monitor_.write(line, settings_.global_batch);
  }
  std::string printed() override { return printer_.lines(record_, settings_.global_batch); }

  std::vector<RunModel> models() override {
    RunModel actor = run_model("actor", *models_.actor, ppo_.actor_trainer(), inputs_.actor);
    if (ppo_.actor_average() != nullptr) {
      actor.averages = &ppo_.actor_average()->shards();
    }
    return {actor, run_model("critic", *models_.critic, ppo_.critic_trainer(), inputs_.critic)};
  }

  static RunModel run_model(const char* name, Model& model, Trainer& trainer,
                            const HfFolder& source) {
    return {.name = name,
            .store = &model.store,
            .trainer = &trainer,
            .source = &source,
            .spec = &model.decoder.spec()};
  }

  nlohmann::json remembered() const override {
    nlohmann::json all = {{"reference", place_of(inputs_.reference)},
                          {"reward", judge()},
                          {"seed", options_.seed},
                          {"global_batch", settings_.global_batch},
                          {"prompts", fingerprint(inputs_)},
                          {"files", judge_files_}};
    if (ppo_.reward_ema()) {
      all["reward_ema"] = *ppo_.reward_ema();
    }
    return all;
  }

  void recall(const nlohmann::json& all, const std::string& path) override {
    require_same(all, "reference", place_of(inputs_.reference), path);
    require_same(all, "reward", judge(), path);
    require_same(all, "seed", options_.seed, path);
    require_same(all, "global_batch", settings_.global_batch, path);
    require_same(all, "prompts", fingerprint(inputs_), path);
    if (leader()) {
      require_files(all.at("files"));
    }
    if (all.contains("reward_ema") && all.at("reward_ema").is_number()) {
      ppo_.set_reward_ema(all.at("reward_ema").get<double>());
    }
  }

  // Of the models that nothing trains, by role.
  void read_judge_files() {
    judge_files_["reference"] = fingerprint_folder(inputs_.reference.path());
    if (inputs_.reward) {
      judge_files_["reward"] = fingerprint_folder(inputs_.reward->path());
    }
  }

  void require_files(const nlohmann::json& recorded) const {
    for (const auto& [role, files] : recorded.items()) {
      require_fingerprint(
          files, role == "reward" ? inputs_.reward.value().path() : inputs_.reference.path(), role);
    }
  }

  std::string judge() const {
    return inputs_.reward ? place_of(*inputs_.reward) : reward_name(options_);
  }

  void save_samples(int64_t step) {
    if (options_.save_samples == 0) {
      return;
    }
    std::string mine;
    for (const Experience& e : ppo_.last_experiences()) {
      if (static_cast<int64_t>(e.sequence % static_cast<uint64_t>(settings_.global_batch)) <
          options_.save_samples) {
        const std::span tokens(e.tokens);
        const auto cut = static_cast<size_t>(e.prompt_length);
        const auto text = [&](std::span<const int64_t> part) {
          return inputs_.tokenizer ? inputs_.tokenizer->decode(part, true) : std::string();
        };
        mine += sample_of(e, step, text(tokens.first(cut)), text(tokens.subspan(cut)))
                    .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                "\n";
      }
    }
    for (const std::string& text : gather_texts(world(), mine)) {
      if (leader()) {
        folder().samples(text);
      }
    }
  }

  void write_models(const std::string& out) override {
    const at::ScalarType dtype = models_.actor->store.settings().dtype;
    for (const auto& [name, model, source] :
         {std::tuple{"actor", models_.actor.get(), &inputs_.actor},
          std::tuple{"critic", models_.critic.get(), &inputs_.critic}}) {
      export_model(*model, *source, dtype, out + "/" + name, IfPresent::kReplace);
    }
    if (ppo_.actor_average() != nullptr) {
      ppo_.actor_average()->write_model(*models_.actor, inputs_.actor, dtype, out + "/actor_ema",
                                        IfPresent::kReplace);
    }
  }

  const PpoOptions& options_;
  const PpoInputs& inputs_;
  int64_t steps_;
  PpoSettings settings_;
  RankModels models_;
  Ppo ppo_;
  PpoMonitor monitor_;
  PpoPrinter printer_;
  PpoRecord record_;
  nlohmann::json judge_files_;  ///< on rank 0 of a run that saves
};

// What the run will take with the prompts that it has.
PlanRequest plan_of(const PpoOptions& o, const PpoInputs& inputs) {
  int64_t longest = 0;
  for (const auto& prompt : inputs.prompts) {
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  }
  std::vector<PlannedModel> models =
      planned_ppo(model_spec(inputs.actor, false), model_spec(inputs.critic, true), o.actor,
                  o.critic, o.place.ranks);
  models.front().averaged = o.enable_ema;
  return {.models = std::move(models),
          .topology = {static_cast<int>(o.place.ranks), static_cast<int>(o.place.nodes)},
          .batch = {o.training_batch, longest + o.max_answer_len},
          .generation = PlannedGeneration{.sequences = o.generation_batch,
                                          .prompt = longest,
                                          .answer = o.max_answer_len,
                                          .hybrid = hybrid_settings(o.actor)},
          .cuda = o.place.cuda};
}

}  // namespace

int run_ppo(const PpoOptions& options) {
  const PpoInputs inputs = read_ppo_inputs(options);
  const PpoSettings settings = ppo_settings(options, inputs, total_steps(options, inputs));
  // Before --overwrite removes a run that is there.
  check_ppo(settings, model_specs(inputs), inputs.prompts);
  require_fits(plan_of(options, inputs), options.place);
  install_stop_signals();
  const bool leader = options.place.leads();
  RunFolder folder(leader ? options.out : "", options.overwrite);
  if (options.resume.empty()) {
    folder.write("config.json", config_of(options));
  }
  TraceFile trace(options);
  run_on_ranks(rank_plan(options), [&](RankEnvironment& environment) {
    const auto recorder = trace.record();
    RankRun(options, inputs, settings, environment, folder).run();
  });
  trace.write();
  return 0;
}

}  // namespace reknit
