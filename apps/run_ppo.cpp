// reknit ppo: four models from their folders, the loop, the run folder.
#include "apps/commands.h"
#include "apps/progress.h"
#include "apps/run_folder.h"
#include "apps/session.h"
#include "apps/signals.h"
#include "reknit/base/log.h"
#include "reknit/engine/run_state.h"
#include "reknit/rlhf/ppo.h"
#include "reknit/rlhf/ppo_report.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <optional>

namespace reknit {
namespace {

using Clock = std::chrono::steady_clock;

/// What all ranks share, read before any of them starts.
struct Inputs {
  HfFolder actor, critic, reference, reward;
  std::optional<Tokenizer> tokenizer;
  std::vector<std::vector<int64_t>> prompts;
};

void check_tokens(const Inputs& inputs) {
  if (!inputs.tokenizer) {
    return;
  }
  for (const HfFolder* folder : {&inputs.critic, &inputs.reference, &inputs.reward}) {
    const auto other = find_tokenizer("", folder->path());
    const auto differs = other ? inputs.tokenizer->first_difference(*other) : std::nullopt;
    if (differs) {
      throw InputError(str(folder->path(), " and ", inputs.actor.path(), " give token ", *differs,
                           " different meanings: \"", other->token(*differs), "\" and \"",
                           inputs.tokenizer->token(*differs), "\""),
                       "actor, critic, reward and reference must share their token ids");
    }
  }
}

void read_prompts(const PpoOptions& options, Inputs& inputs) {
  size_t too_long = 0;
  for (const Row& row : read_rows({options.prompts.begin(), options.prompts.end()})) {
    const Field* field = row.prompt     ? &*row.prompt
                         : row.messages ? &*row.messages
                         : row.text     ? &*row.text
                         : row.tokens   ? &*row.tokens
                                        : nullptr;
    if (field == nullptr) {
      row.fail("has no prompt");
    }
    auto tokens = field_tokens(row, *field, inputs.tokenizer);
    if (static_cast<int64_t>(tokens.size()) > options.max_prompt_len) {
      ++too_long;
    } else if (tokens.empty()) {
      row.fail("has a prompt without tokens");
    } else {
      inputs.prompts.push_back(std::move(tokens));
    }
  }
  if (too_long > 0) {
    log_info(too_long, " prompts of more than ", options.max_prompt_len, " tokens were dropped, ",
             inputs.prompts.size(), " are left");
  }
  if (inputs.prompts.empty()) {
    throw InputError(
        str("no prompt has at most ", options.max_prompt_len, " tokens (--max-prompt-seq-len)"),
        "raise --max-prompt-seq-len, or give shorter prompts");
  }
}

Inputs read_inputs(const PpoOptions& o) {
  const std::string critic = o.critic_dir.empty() ? o.actor_dir : o.critic_dir;
  Inputs inputs{HfFolder(o.actor_dir),
                HfFolder(critic),
                HfFolder(o.reference_dir.empty() ? o.actor_dir : o.reference_dir),
                HfFolder(o.reward_dir.empty() ? critic : o.reward_dir),
                find_tokenizer(o.tokenizer_dir, o.actor_dir),
                {}};
  check_tokens(inputs);
  if (!o.allow_random_reward && !has_value_head(inputs.reward)) {
    throw InputError(str(inputs.reward.path(), " has no value head, so it cannot be the reward"),
                     "pass --reward with a trained reward model, or --allow-random-reward");
  }
  read_prompts(o, inputs);
  return inputs;
}

int64_t global_batch(const PpoOptions& o) {
  if (o.global_batch) {
    return *o.global_batch;
  }
  // Both factors on the left are below 2^31 and 2^12.
  int64_t whole = o.generation_batch * o.place.ranks;
  if (__builtin_mul_overflow(whole, o.generation_batches, &whole) || whole > INT32_MAX) {
    throw UsageError(str("--generation-batches ", o.generation_batches, " of ", o.generation_batch,
                         " prompts on ", o.place.ranks, " ranks are more than a step can have"),
                     "lower --generation-batches or --generation-batch");
  }
  return whole;
}

// Prompts of an update over all ranks.
int64_t minibatch(const PpoOptions& o) {
  const int64_t whole = global_batch(o);
  if (o.global_batch) {
    return whole;
  }
  return std::min(whole,
                  o.actor.reading.batch.micro * o.actor.reading.batch.accumulation * o.place.ranks);
}

int64_t total_steps(const PpoOptions& o, const Inputs& inputs) {
  const int64_t batch = global_batch(o);
  const auto rows = static_cast<int64_t>(inputs.prompts.size()) * o.num_train_epochs;
  return o.steps.value_or((rows + batch - 1) / batch);
}

Schedule schedule(const PpoOptions& o, const ModelSettings& model, int64_t steps) {
  const int64_t updates = steps * (global_batch(o) / minibatch(o)) * o.ppo_epochs;
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

PpoSettings ppo_settings(const PpoOptions& o, const Inputs& inputs, int64_t steps) {
  const ModelSpec spec = model_spec(inputs.actor, false);
  const auto eos = inputs.tokenizer ? inputs.tokenizer->eos() : std::nullopt;
  PpoSettings settings;
  settings.rules = o.deepspeed_chat ? PpoRules::kDeepSpeedChat : PpoRules::kStrict;
  settings.constants = {o.kl_ctl, o.clip_reward_value, o.cliprange, o.cliprange_value, o.gamma,
                        o.lam};
  settings.sampling = {.max_new_tokens = o.max_answer_len,
                       .temperature = o.sampling.temperature,
                       .top_k = o.sampling.top_k,
                       .top_p = o.sampling.top_p,
                       .seed = static_cast<uint64_t>(o.seed),
                       .eos = spec.eos >= 0 ? spec.eos : eos.value_or(-1),
                       .vocab = spec.vocab};
  settings.global_batch = global_batch(o);
  settings.minibatch = minibatch(o);
  settings.micro_batch = o.training_batch;
  settings.generate_batch = o.generation_batch;
  settings.ppo_epochs = static_cast<int>(o.ppo_epochs);
  settings.seed = static_cast<uint64_t>(o.seed);
  settings.ema_beta = o.enable_ema ? o.ema_beta : 0.0;
  settings.align_overflow = o.align_overflow;
  settings.hybrid = hybrid_settings(o.actor);
  if (o.unpin_actor_parameters) {
    settings.hybrid.mode = GatherMode::kLayerwise;
  }
  settings.actor_checkpointing = checkpointing(o.actor);
  settings.critic_checkpointing = checkpointing(o.critic);
  settings.actor = trainer_settings("actor", o.actor, schedule(o, o.actor, steps));
  settings.critic = trainer_settings("critic", o.critic, schedule(o, o.critic, steps));
  return settings;
}

/// The four models of a rank and the pool between them.
struct RankModels {
  SlotPool pool;
  std::unique_ptr<Model> actor, critic, reference, reward;

  RankModels(const PpoOptions& o, const Inputs& inputs, RankEnvironment& environment)
      : pool(environment.allocator) {
    actor = make("actor", inputs.actor, o.actor, environment, true, false);
    critic = make("critic", inputs.critic, o.critic, environment, true, true);
    reference = make("reference", inputs.reference, o.actor, environment, false, false);
    reward = make("reward", inputs.reward, o.critic, environment, false, true);
    pool.seal();
    const auto seed = static_cast<uint64_t>(o.seed);
    load_model(*actor, inputs.actor, ValueHead::kNone, seed);
    load_model(*critic, inputs.critic, ValueHead::kNewIfAbsent, seed);
    load_model(*reference, inputs.reference, ValueHead::kNone, seed);
    load_model(*reward, inputs.reward,
               o.allow_random_reward ? ValueHead::kNewIfAbsent : ValueHead::kRequired, seed + 1);
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

class RankRun {
 public:
  RankRun(const PpoOptions& options, const Inputs& inputs, RankEnvironment& environment,
          RunFolder* folder)
      : options_(options),
        inputs_(inputs),
        world_(*environment.world),
        folder_(folder),
        steps_(total_steps(options, inputs)),
        settings_(ppo_settings(options, inputs, steps_)),
        models_(options, inputs, environment),
        ppo_(models_.all(), settings_, inputs.prompts) {}

  void run() {
    log_once("ppo: ", world_.size(), " ranks, ", steps_, " steps of ", settings_.global_batch,
             " prompts, ", inputs_.prompts.size(), " prompts in all");
    if (!options_.out.empty()) {
      require_shared_folder(world_, options_.out);
    }
    resume();
    std::optional<Progress> progress;
    if (leader()) {
      progress.emplace("ppo", steps_);
    }
    const auto start = Clock::now();
    while (step_ < steps_ && !should_stop(start)) {
      report(ppo_.step(step_++), progress);
      if (options_.save_interval && step_ % *options_.save_interval == 0 && step_ < steps_) {
        save();
      }
    }
    progress.reset();
    if (options_.save_interval && step_ > saved_) {
      save();
    }
    finish(std::chrono::duration<double>(Clock::now() - start).count());
  }

 private:
  bool leader() const { return world_.rank() == 0; }

  // Ranks agree, so that all of them end after the same step.
  bool should_stop(Clock::time_point start) {
    const std::chrono::duration<double> passed = Clock::now() - start;
    const bool late = options_.time_limit_min && passed.count() > *options_.time_limit_min * 60;
    return largest(world_, stop_requested() || late ? 1 : 0) != 0;
  }

  void report(const PpoRecord& record, std::optional<Progress>& progress) {
    save_samples(record.step);
    if (!leader()) {
      return;
    }
    last_ = record;
    folder_->metrics(metrics_of(record, settings_.global_batch));
    if (record.step % options_.log_interval.value_or(1) == 0) {
      progress->line(printer_.lines(record, settings_.global_batch));
    }
    progress->advance(record.step);
  }

  RunState run_state() {
    return {&world_,
            step_,
            {{"actor", &models_.actor->store, &ppo_.actor_trainer()},
             {"critic", &models_.critic->store, &ppo_.critic_trainer()}}};
  }

  void save() {
    nlohmann::json extra = {{"reference", place_of(inputs_.reference)},
                            {"reward", place_of(inputs_.reward)},
                            {"seed", options_.seed},
                            {"global_batch", settings_.global_batch}};
    if (ppo_.reward_ema()) {
      extra["reward_ema"] = *ppo_.reward_ema();
    }
    save_run(run_state(), extra, options_.out, static_cast<int>(options_.keep));
    saved_ = step_;
  }

  void resume() {
    if (options_.resume.empty()) {
      return;
    }
    const std::optional<std::string> path = options_.resume == "auto"
                                                ? find_newest_run(world_, options_.out)
                                                : std::optional<std::string>(options_.resume);
    if (!path) {
      log_once("there is no checkpoint in ", options_.out, ": a fresh start");
      return;
    }
    RunState run = run_state();
    const nlohmann::json extra = load_run(run, *path);
    require_same(extra, "reference", place_of(inputs_.reference), *path);
    require_same(extra, "reward", place_of(inputs_.reward), *path);
    require_same(extra, "seed", options_.seed, *path);
    require_same(extra, "global_batch", settings_.global_batch, *path);
    if (extra.contains("reward_ema")) {
      ppo_.set_reward_ema(extra.at("reward_ema").get<double>());
    }
    step_ = run.step;
    saved_ = run.step;
    if (leader()) {
      folder_->resume_after(step_);
    }
    log_once("resumed after step ", step_, " from ", *path);
  }

  // However the folder was typed, and from wherever.
  static std::string place_of(const HfFolder& folder) {
    return std::filesystem::canonical(folder.path()).string();
  }

  // The same data position and judges: otherwise it would be another run.
  template <class T>
  static void require_same(const nlohmann::json& extra, const char* key, const T& now,
                           const std::string& path) {
    if (extra.at(key) != nlohmann::json(now)) {
      throw UsageError(str("the run in ", path, " began with ", key, " ", extra.at(key).dump(),
                           ", this command says ", nlohmann::json(now).dump()),
                       "resume with the flags that the run began with, or start in another --out");
    }
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
    for (const std::string& text : gather_texts(world_, mine)) {
      if (leader()) {
        folder_->samples(text);
      }
    }
  }

  void finish(double seconds) {
    if (step_ < steps_) {
      log_once("stopped after step ", step_, " of ", steps_, " (",
               *stop_reason() != '\0' ? stop_reason() : "time limit", ")",
               options_.save_interval ? "; go on with the same command and --resume auto" : "");
    }
    if (options_.out.empty()) {
      return;
    }
    const at::ScalarType dtype = models_.actor->store.settings().dtype;
    for (const auto& [name, model, source] :
         {std::tuple{"actor", models_.actor.get(), &inputs_.actor},
          std::tuple{"critic", models_.critic.get(), &inputs_.critic}}) {
      export_model(*model, *source, dtype, options_.out + "/" + name, IfPresent::kReplace);
    }
    if (ppo_.actor_average() != nullptr) {
      ppo_.actor_average()->write_model(*models_.actor, inputs_.actor, dtype,
                                        options_.out + "/actor_ema", IfPresent::kReplace);
    }
    if (leader()) {
      nlohmann::ordered_json summary = {{"command", "ppo"},
                                        {"ranks", world_.size()},
                                        {"steps", step_},
                                        {"planned_steps", steps_},
                                        {"seconds", seconds}};
      if (last_) {
        summary["last"] = metrics_of(*last_, settings_.global_batch);
      }
      folder_->write("summary.json", summary.dump(2) + "\n");
    }
  }

  const PpoOptions& options_;
  const Inputs& inputs_;
  Communicator& world_;
  RunFolder* folder_;
  int64_t steps_;
  PpoSettings settings_;
  RankModels models_;
  Ppo ppo_;
  PpoPrinter printer_;
  std::optional<PpoRecord> last_;
  int64_t step_ = 0;   ///< steps done
  int64_t saved_ = 0;  ///< of the last checkpoint
};

// Flags whose part of the system is not in this build: refused, never ignored.
void refuse_unbuilt(const PpoOptions& o) {
  const std::pair<bool, const char*> flags[] = {
      {!o.reward_fn.empty(), "--reward-fn"},
      {!o.reward_cmd.empty(), "--reward-cmd"},
      {!o.reward_rule.empty(), "--reward-rule"},
      {o.enable_ema && (o.save_interval || !o.resume.empty()),
       "--enable-ema together with --save-interval or --resume"},
  };
  for (const auto& [given, flag] : flags) {
    require<UsageError>(!given, flag, " is not built into this version");
  }
}

}  // namespace

int run_ppo(const PpoOptions& options) {
  refuse_unbuilt(options);
  const Inputs inputs = read_inputs(options);
  install_stop_signals();
  const bool leader = !options.place.launched || options.place.launched->rendezvous.rank == 0;
  RunFolder folder(leader ? options.out : "", options.overwrite);
  folder.write("config.json", str("{\"actor\": ", options.actor.resolved_json,
                                  ", \"critic\": ", options.critic.resolved_json, "}\n"));
  run_on_ranks(rank_plan(options), [&](RankEnvironment& environment) {
    RankRun(options, inputs, environment, &folder).run();
  });
  return 0;
}

}  // namespace reknit
