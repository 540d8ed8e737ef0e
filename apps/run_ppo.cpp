// reknit ppo: four models from their folders, the loop, the run folder.
#include "apps/commands.h"
#include "apps/ppo_monitor.h"
#include "apps/ppo_reward.h"
#include "apps/session.h"
#include "apps/signals.h"
#include "apps/train_run.h"
#include "reknit/base/log.h"
#include "reknit/rlhf/ppo.h"
#include "reknit/rlhf/ppo_report.h"

#include <nlohmann/json.hpp>

#include <optional>

namespace reknit {
namespace {

/// What all ranks share, read before any of them starts.
struct Inputs {
  HfFolder actor, critic, reference;
  std::optional<HfFolder> reward;  ///< none: a rule or a program
  std::optional<Tokenizer> tokenizer;
  std::vector<std::vector<int64_t>> prompts;
  std::vector<std::string> others;  ///< the other keys of each prompt's row
};

void check_tokens(const Inputs& inputs) {
  if (!inputs.tokenizer) {
    return;
  }
  for (const HfFolder* folder :
       {&inputs.critic, &inputs.reference, inputs.reward ? &*inputs.reward : &inputs.critic}) {
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
      inputs.others.push_back(row.other);
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
                std::nullopt,
                find_tokenizer(o.tokenizer_dir, o.actor_dir),
                {},
                {}};
  check_reward(o, inputs.tokenizer);
  if (reward_name(o).empty()) {
    inputs.reward.emplace(o.reward_dir.empty() ? critic : o.reward_dir);
  }
  check_tokens(inputs);
  if (inputs.reward && !o.allow_random_reward && !has_value_head(*inputs.reward)) {
    throw InputError(str(inputs.reward->path(), " has no value head, so it cannot be the reward"),
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
  const auto prompts = static_cast<int64_t>(inputs.prompts.size());
  const int64_t batch = std::min(global_batch(o), prompts);
  return o.steps.value_or((prompts * o.num_train_epochs + batch - 1) / batch);
}

Schedule schedule(const PpoOptions& o, const Inputs& inputs, const ModelSettings& model,
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
  settings.actor = trainer_settings("actor", o.actor, schedule(o, inputs, o.actor, steps));
  settings.critic = trainer_settings("critic", o.critic, schedule(o, inputs, o.critic, steps));
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
                      StoreComms::over(environment.world, store.placement.shard_size), pool);
  }
};

class RankRun final : public TrainRun {
 public:
  RankRun(const PpoOptions& options, const Inputs& inputs, RankEnvironment& environment,
          RunFolder& folder)
      : TrainRun(options, *environment.world, folder),
        options_(options),
        inputs_(inputs),
        steps_(total_steps(options, inputs)),
        settings_(ppo_settings(options, inputs, steps_)),
        models_(options, inputs, environment),
        ppo_(models_.all(), settings_, inputs.prompts,
             make_score(options, inputs.tokenizer, inputs.others)),
        monitor_(options, leader()) {
    if (ppo_.global_batch() < settings_.global_batch) {
      log_once("there are fewer prompts than a step could take: each step takes all ",
               ppo_.global_batch(), " once");
      settings_.global_batch = ppo_.global_batch();
    }
  }

 private:
  Plan plan() const override { return {"ppo", steps_, 1}; }
  std::string headline() const override {
    return str("ppo: ", world().size(), " ranks, ", steps_, " steps of ", settings_.global_batch,
               " prompts, ", inputs_.prompts.size(), " prompts in all");
  }

  void take_step(int64_t step) override {
    record_ = ppo_.step(step);
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
    RunModel actor{"actor", &models_.actor->store, &ppo_.actor_trainer()};
    if (ppo_.actor_average() != nullptr) {
      actor.averages = &ppo_.actor_average()->shards();
    }
    return {actor, {"critic", &models_.critic->store, &ppo_.critic_trainer()}};
  }

  nlohmann::json remembered() const override {
    nlohmann::json all = {{"reference", place_of(inputs_.reference)},
                          {"reward", judge()},
                          {"seed", options_.seed},
                          {"global_batch", settings_.global_batch}};
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
    if (all.contains("reward_ema") && all.at("reward_ema").is_number()) {
      ppo_.set_reward_ema(all.at("reward_ema").get<double>());
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
  const Inputs& inputs_;
  int64_t steps_;
  PpoSettings settings_;
  RankModels models_;
  Ppo ppo_;
  PpoMonitor monitor_;
  PpoPrinter printer_;
  PpoRecord record_;
};

}  // namespace

int run_ppo(const PpoOptions& options) {
  const Inputs inputs = read_inputs(options);
  install_stop_signals();
  const bool leader = !options.place.launched || options.place.launched->rendezvous.rank == 0;
  RunFolder folder(leader ? options.out : "", options.overwrite);
  folder.write("config.json", str("{\"actor\": ", options.actor.resolved_json,
                                  ", \"critic\": ", options.critic.resolved_json, "}\n"));
  run_on_ranks(rank_plan(options), [&](RankEnvironment& environment) {
    RankRun(options, inputs, environment, folder).run();
  });
  return 0;
}

}  // namespace reknit
