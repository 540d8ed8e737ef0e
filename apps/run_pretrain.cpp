// reknit pretrain: a model and token files, the loop, the run folder.
#include "apps/commands.h"
#include "apps/monitor.h"
#include "apps/planning.h"
#include "apps/pretrain_inputs.h"
#include "apps/pretrain_report.h"
#include "apps/session.h"
#include "apps/signals.h"
#include "apps/tracing.h"
#include "apps/train_run.h"
#include "reknit/base/format.h"
#include "reknit/base/log.h"
#include "reknit/engine/comm_report.h"
#include "reknit/engine/deepspeed_run.h"
#include "reknit/engine/flops.h"

namespace reknit {
namespace {

/// The model of a rank and its pool.
struct RankModel {
  SlotPool pool;
  std::unique_ptr<Model> model;

  RankModel(const PretrainOptions& o, const PretrainInputs& inputs, RankEnvironment& environment)
      : pool(environment.allocator) {
    const StoreSettings store = store_settings("model", o.settings, environment, true);
    model =
        make_model(inputs.spec, store, StoreComms::over(environment.world, store.placement), pool);
    pool.seal();
    const auto seed = static_cast<uint64_t>(o.seed);
    if (inputs.has_weights) {
      load_model(*model, inputs.folder, ValueHead::kNone, seed);
    } else {
      init_model(*model, seed);
    }
  }
};

PretrainSettings pretrain_settings(const PretrainOptions& o, const PretrainInputs& inputs,
                                   int64_t steps) {
  PretrainSettings settings;
  settings.lm.micro_batch = o.settings.reading.batch.micro;
  settings.lm.seed = static_cast<uint64_t>(o.seed);
  settings.lm.checkpointing = checkpointing(o);
  settings.lm.timed = o.wall_clock_breakdown;
  settings.lm.trainer =
      trainer_settings("model", o.settings, configured_schedule(o.settings, steps));
  settings.lm.trainer.decay_ramp = weight_decay_ramp(o, steps);
  if (o.decay.decoupled_lr) {
    settings.lm.trainer.optimizer.rates = {{"embed.tokens.", *o.decay.decoupled_lr},
                                           {"head.table.", *o.decay.decoupled_lr}};
  }
  settings.documents = inputs.documents;
  settings.batch = batch_plan(o);
  settings.schedule = sample_schedule(o, steps);
  return settings;
}

/// The highest rate is the optimizer's unless the schedule has its own.
nlohmann::json schedule_json(const PretrainSettings& settings) {
  const std::optional<Schedule>& s = settings.schedule;
  const TrainerSettings& trainer = settings.lm.trainer;
  if (!s) {
    return nullptr;
  }
  nlohmann::json json = {{"style", Schedule::megatron_name(s->kind)},
                         {"max_lr", s->max_lr < 0 ? trainer.lr : s->max_lr},
                         {"min_lr", s->min_lr},
                         {"warmup", s->warmup},
                         {"end", s->total}};
  if (!trainer.optimizer.rates.empty()) {
    json["decoupled_lr"] = trainer.optimizer.rates.front().lr;
  }
  return json;
}

Schedule read_schedule(const nlohmann::json& json) {
  return {.kind = Schedule::parse_megatron(json.at("style").get<std::string>()),
          .warmup = json.at("warmup").get<int64_t>(),
          .total = json.at("end").get<int64_t>(),
          .min_lr = json.at("min_lr").get<double>(),
          .max_lr = json.at("max_lr").get<double>()};
}

/// Of a run with one of Megatron's schedules; null of others. `constant`: where there is no ramp.
nlohmann::json weight_decay_json(const PretrainSettings& settings, double constant) {
  if (!settings.schedule) {
    return nullptr;
  }
  const DecayRamp ramp =
      settings.lm.trainer.decay_ramp.value_or(DecayRamp{.start = constant, .end = constant});
  return {{"style", DecayRamp::name(ramp.style)},
          {"start", ramp.start},
          {"end", ramp.end},
          {"samples", ramp.total}};
}

DecayRamp read_weight_decay(const nlohmann::json& json) {
  return {.style = DecayRamp::parse(json.at("style").get<std::string>()),
          .start = json.at("start").get<double>(),
          .end = json.at("end").get<double>(),
          .total = json.at("samples").get<int64_t>()};
}

/// Bytes of this rank, by what they are for.
struct Memory {
  int64_t shards, optimizer, slots;

  int64_t total() const { return shards + optimizer + slots; }
};

std::string config_of(const PretrainOptions& options) {
  return options.settings.resolved_json + "\n";
}

class RankRun final : public TrainRun {
 public:
  RankRun(const PretrainOptions& options, const PretrainInputs& inputs,
          RankEnvironment& environment, RunFolder& folder)
      : TrainRun(options, *environment.world, folder),
        options_(options),
        inputs_(inputs),
        steps_(total_steps(options, inputs)),
        settings_(pretrain_settings(options, inputs, steps_)),
        rank_(options, inputs, environment),
        pretrain_(*rank_.model, settings_, inputs.train),
        memory_{rank_.model->store.shard_bytes(), pretrain_.trainer().optimizer().bytes(),
                rank_.pool.total_bytes()},
        facts_{steps_,
               options.seq_length,
               environment.world->size(),
               training_flops(inputs.spec, options.seq_length, settings_.lm.checkpointing),
               largest(*environment.world, memory_.total()),
               settings_.lm.timed},
        printer_(facts_) {
    if (leader()) {
      if (options.tensorboard) {
        tensorboard_ = make_tensorboard(options.tensorboard_dir);
      }
      monitors_ = configured_monitors(options.settings.reading.config);
    }
  }

 private:
  Plan plan() const override {
    const DeepSpeedConfig& config = options_.settings.reading.config;
    return {"pretrain", steps_, config.steps_per_print.value_or(10), config.comms_logger,
            config.steps_per_print};
  }

  std::string headline() const override {
    int64_t parameters = 0;
    const Store& store = rank_.model->store;
    for (GroupId group = 0; group < store.num_groups(); ++group) {
      for (const ParamSpec& param : store.spec(group).params) {
        parameters += c10::multiply_integers(param.shape);
      }
    }
    return str("pretrain: ", inputs_.spec.model_type, " of ", parameters, " parameters",
               inputs_.has_weights ? "" : ", new weights", "; ", plural(world().size(), "rank"),
               ", ", plural(steps_, "step"), " of ", plural(settings_.batch.global, "sequence"),
               " of ", plural(options_.seq_length, "token"), "; rate ",
               options_.settings.reading.config.optimizer.lr.value_or(0.0), ", ",
               !options_.decay.style.empty() ? options_.decay.style
               : options_.settings.reading.config.scheduler.type.empty()
                   ? "constant"
                   : options_.settings.reading.config.scheduler.type,
               weight_decay_line(), "; dropout ", inputs_.spec.hidden_dropout, ", attention ",
               inputs_.spec.attention_dropout);
  }

  std::string weight_decay_line() const {
    const std::optional<DecayRamp>& ramp = settings_.lm.trainer.decay_ramp;
    return ramp ? str("; weight decay ", ramp->start, " to ", ramp->end, ", ",
                      DecayRamp::name(ramp->style))
                : "";
  }

  CommCounts comm_counts() const {
    const StoreComms& comms = rank_.model->store.comms();
    CommCounts sum = comms.counts();
    sum += comms.world->counts();
    return sum;
  }

  void take_step(int64_t step) override {
    const CommCounts before = comm_counts();
    record_ = pretrain_.step(step);
    CommCounts moved = comm_counts();
    moved -= before;
    comm_ = comm_json(moved);
    skipped_ = pretrain_.trainer().skipped();
    printer_.add(record_);
    ++taken_;
    validation_loss_.reset();
    if (inputs_.valid && options_.eval_iters > 0 && record_.step % options_.eval_interval == 0) {
      validate(str("iteration ", record_.step));
    }
  }

  // --tensorboard over steps; the config's over samples, under DeepSpeed's tags.
  void written(const nlohmann::ordered_json& line) override {
    if (tensorboard_) {
      Scalars scalars;
      for (const auto& [key, value] : line.items()) {
        if (value.is_number() && key != "step") {
          scalars.emplace_back(key, value.get<double>());
        }
      }
      tensorboard_->write(record_.step, scalars);
    }
    for (const auto& monitor : monitors_) {
      monitor->write(record_.samples, {{"Train/Samples/lr", record_.lm.update.lr},
                                       {"Train/Samples/loss_scale", record_.lm.update.loss_scale}});
    }
  }

  void validate(const std::string& where) {
    validation_loss_ = evaluate(*inputs_.valid);
    validated_at_ = record_.step;
    say(validation_line(where, *validation_loss_));
  }

  double evaluate(const BlendedDataset& data) {
    int64_t samples = 0;
    for (const BlendedDataset::Source& source : data.sources()) {
      samples += source.data->samples_in(1);
    }
    samples = std::max<int64_t>(1, samples);
    return pretrain_.evaluate(data,
                              std::min(samples, options_.eval_iters * settings_.batch.global));
  }

  nlohmann::ordered_json metrics() const override {
    nlohmann::ordered_json line = metrics_of(record_, facts_, skipped_, validation_loss_);
    line["comm"] = comm_;
    return line;
  }
  std::string printed() override { return printer_.lines(skipped_); }

  std::string config() const override { return config_of(options_); }

  std::string early_end(int64_t done) const override {
    return taken_ > 0 && options_.exit_interval > 0 && done % options_.exit_interval == 0
               ? str("--exit-interval ", options_.exit_interval)
               : "";
  }

  void conclude() override {
    if (options_.eval_iters == 0 || record_.step < steps_) {
      return;
    }
    if (inputs_.valid && validated_at_ != record_.step) {
      validate(str("the end of training for val data"));
    }
    if (inputs_.test) {
      test_loss_ = evaluate(*inputs_.test);
      say(validation_line("the end of training for test data", *test_loss_));
    }
  }

  std::vector<RunModel> models() override {
    return {{.name = "model",
             .store = &rank_.model->store,
             .trainer = &pretrain_.trainer(),
             .source = &inputs_.written,
             .spec = &rank_.model->decoder.spec()}};
  }

  nlohmann::json remembered() const override {
    const BatchPlan& batch = settings_.batch;
    return {{"command", "pretrain"},
            {"seed", options_.seed},
            {"seq_length", options_.seq_length},
            {"data", inputs_.data},
            {"batch", {batch.global, batch.start, batch.increment, batch.samples}},
            {"schedule", schedule_json(settings_)},
            {"weight_decay",
             weight_decay_json(settings_, options_.settings.reading.config.optimizer.weight_decay)},
            {"consumed", pretrain_.position().consumed},
            {"scheduled", pretrain_.position().scheduled}};
  }

  void recall(const nlohmann::json& all, const std::string& path) override {
    const nlohmann::json now = remembered();
    for (const char* key : {"command", "seed", "seq_length", "data"}) {
      require_same(all, key, now.at(key), path);
    }
    if (all.contains("batch") && all.at("batch") != now.at("batch")) {  // in words for a reader
      const auto& then = all.at("batch");
      const auto& is = now.at("batch");
      throw UsageError(then.at(0) == is.at(0)
                           ? str("the run in ", path, " began with another --rampup-batch-size")
                           : str("the run in ", path, " began with a global batch of ",
                                 then.at(0).dump(), ", this command's is ", is.at(0).dump()),
                       "pass --global-batch-size, and --rampup-batch-size if it had one, as then");
    }
    require_same(all, "batch", now.at("batch"), path);
    if (options_.use_checkpoint_schedule && !all.at("schedule").is_null()) {
      if (all.at("schedule").contains("decoupled_lr")) {
        throw UsageError(str("the run in ", path, " has a --decoupled-lr of ",
                             all.at("schedule").at("decoupled_lr").dump()),
                         "give the schedule's flags instead of "
                         "--use-checkpoint-opt-param-scheduler");
      }
      settings_.schedule = read_schedule(all.at("schedule"));
      pretrain_.set_schedule(*settings_.schedule);
      if (all.contains("weight_decay")) {
        settings_.lm.trainer.decay_ramp = read_weight_decay(all.at("weight_decay"));
        pretrain_.trainer().set_decay_ramp(*settings_.lm.trainer.decay_ramp);
      }
    } else if (!options_.override_schedule) {
      require_same(all, "schedule", now.at("schedule"), path);
      if (all.contains("weight_decay")) {  // checkpoints of earlier versions have none
        require_same(all, "weight_decay", now.at("weight_decay"), path);
      }
    }
    pretrain_.set_position({all.at("consumed").get<int64_t>(), all.at("scheduled").get<int64_t>()});
  }

  int64_t take_deepspeed(const std::string& path) override {
    const DeepSpeedFolder checkpoint(path);
    load_deepspeed(*rank_.model, pretrain_.trainer(), checkpoint);
    const DeepSpeedProgress& progress = checkpoint.progress();
    const int64_t batch = progress.steps > 0 ? progress.samples / progress.steps : 0;
    pretrain_.set_position({progress.samples, progress.samples - progress.skipped * batch});
    log_once(deepspeed_summary(checkpoint), "; this run goes on after sample ", progress.samples,
             " of its own data");
    return progress.steps;
  }

  void write_models(const std::string& out) override {
    export_model(*rank_.model, inputs_.written, rank_.model->store.settings().dtype, out + "/model",
                 IfPresent::kReplace);
  }

  void summarise(nlohmann::ordered_json& summary) const override {
    summary["memory"] = {
        {"shards", memory_.shards}, {"optimizer", memory_.optimizer}, {"slots", memory_.slots}};
    if (validation_loss_) {
      summary["validation_loss"] = *validation_loss_;
    }
    if (test_loss_) {
      summary["test_loss"] = *test_loss_;
    }
  }

  const PretrainOptions& options_;
  const PretrainInputs& inputs_;
  int64_t steps_;
  PretrainSettings settings_;
  RankModel rank_;
  Pretrain pretrain_;
  Memory memory_;
  PretrainFacts facts_;
  PretrainPrinter printer_;
  std::unique_ptr<Monitor> tensorboard_;
  std::vector<std::unique_ptr<Monitor>> monitors_;
  PretrainRecord record_;
  nlohmann::ordered_json comm_;  ///< of the last step
  std::optional<double> validation_loss_, test_loss_;
  int64_t validated_at_ = -1;
  int64_t taken_ = 0;    ///< steps of this process
  int64_t skipped_ = 0;  ///< of the run
};

PlanRequest plan_of(const PretrainOptions& o, const PretrainInputs& inputs) {
  PlannedModel model = planned_model("model", inputs.spec, o.settings, o.place.ranks, true);
  model.checkpointing = checkpointing(o);
  const BatchSizes& batch = o.settings.reading.batch;
  return {.models = {std::move(model)},
          .topology = {static_cast<int>(o.place.ranks), static_cast<int>(o.place.nodes)},
          .batch = {batch.micro, o.seq_length},
          .micro_batches = batch.accumulation,
          .cuda = o.place.cuda};
}

}  // namespace

int run_pretrain(const PretrainOptions& options) {
  const PretrainInputs inputs = read_pretrain_inputs(options);
  sample_schedule(options, total_steps(options, inputs));  // what is wrong is said at once
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
    RankRun(options, inputs, environment, folder).run();
  });
  trace.write();
  return 0;
}

}  // namespace reknit
