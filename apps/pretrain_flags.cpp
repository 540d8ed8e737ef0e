#include "apps/pretrain_flags.h"

#include "apps/validators.h"

#include <memory>

namespace reknit {
namespace {

const char* kFooter =
    "\nExamples:\n"
    "  reknit data build --input text.jsonl --tokenizer gpt2 --out text\n"
    "  reknit pretrain --model gpt2/config.json --data text --seq-length 512 --steps 1000 \\\n"
    "      --batch 4 --global-batch-size 32 --lr 3e-4 --lr-decay-style cosine --out run\n"
    "  torchrun --no-python --nproc-per-node 4 reknit pretrain ... --config ds.json\n"
    "  reknit pretrain ... --out run --save-interval 100 --resume auto\n"
    "\nMegatron's flags are taken as well: docs/megatron_flags.md says what becomes of each.\n"
    "`_` and `-` are the same in every flag. docs/pretrain.md has an example from text to model.";

/// Declares options of one group.
class Group {
 public:
  Group(CLI::App& app, std::string name) : app_(app), name_(std::move(name)) {}

  template <class T>
  CLI::Option* option(const std::string& flag, T& value, const std::string& text,
                      const std::string& type) {
    return app_.add_option(flag, value, text)->type_name(type)->group(name_);
  }
  template <class T>
  CLI::Option* whole(const std::string& flag, T& value, const std::string& text, int64_t least = 1,
                     int64_t most = INT32_MAX) {
    return option(flag, value, text, "N")->check(at_least(least, most));
  }
  template <class T>
  CLI::Option* number(const std::string& flag, T& value, const std::string& text) {
    return option(flag, value, text, "X")->check(not_negative());
  }
  CLI::Option* flag(const std::string& flag, bool& value, const std::string& text) {
    return app_.add_flag(flag, value, text)->group(name_);
  }

 private:
  CLI::App& app_;
  std::string name_;
};

// Counts of samples and tokens: large, and sums of two stay within 64 bits.
constexpr int64_t kMany = int64_t{1} << 60;

void add_model(CLI::App& app, PretrainOptions& o) {
  Group group(app, "Model");
  group.option("--model", o.model, "A folder to go on from, or a config.json to begin with",
               "DIR|FILE");
  ShapeOptions& shape = o.shape;
  group.whole("--num-layers", shape.num_layers, "Without --model: a GPT-2 of this shape");
  group.whole("--hidden-size", shape.hidden_size, "Width");
  group.whole("--num-attention-heads", shape.num_attention_heads, "Heads");
  group.whole("--ffn-hidden-size", shape.ffn_hidden_size, "Width of the MLP (default: 4 x hidden)");
  group.whole("--max-position-embeddings", shape.max_position_embeddings,
              "Positions (default: the sequence length)");
  group.whole("--vocab-size", shape.vocab_size, "Tokens (default: the tokenizer's)");
  group.option("--vocab-file", shape.vocab_file, "vocab.json: tells the tokens and the end token",
               "FILE");
  group
      .whole("--make-vocab-size-divisible-by", shape.make_vocab_size_divisible_by,
             "Rows of the embedding are a multiple of this")
      ->capture_default_str();
  group.number("--init-method-std", shape.init_method_std, "Deviation of new weights")
      ->capture_default_str();
  group.number("--layernorm-epsilon", shape.layernorm_epsilon, "Of the norms")
      ->capture_default_str();
  group.flag("--untie-embeddings-and-output-weights", shape.untie_embeddings,
             "The output has a table of its own");
  group
      .option("--hidden-dropout", o.hidden_dropout,
              "Of branches and embeddings (default: the config's; 0.1 without --model)", "P")
      ->check(number_within(0, 0.999));
  group
      .option("--attention-dropout", o.attention_dropout,
              "Of probabilities (default: the config's; 0.1 without --model)", "P")
      ->check(number_within(0, 0.999));
  group.option("--tokenizer", o.tokenizer_dir,
               "Its files go into the model's folder (default: the model's)", "DIR");
}

void add_data(CLI::App& app, PretrainOptions& o) {
  Group group(app, "Data");
  const auto list = [&](const char* flag, std::vector<std::string>& words, const char* text) {
    group.option(flag, words, text, "[W] PREFIX ...")->expected(1, -1);
  };
  list("--data", o.data, "Token files: a prefix, or weights and prefixes");
  list("--train-data-path", o.train_data, "In place of --data and --split");
  list("--valid-data-path", o.valid_data, "The same, for validation");
  list("--test-data-path", o.test_data, "The same, for the test at the end");
  group.option("--split", o.split, "Parts for training, validation and test", "SPLIT")
      ->capture_default_str();
  group.whole("--seq-length", o.seq_length, "Tokens of a sample");
  group.whole("--eod-token", o.eod,
              "The end-of-document token (default: the tokenizer's or model's)", 0);
  group.flag("--reset-position-ids", o.reset_position_ids, "Positions begin again after it");
  group.flag("--reset-attention-mask", o.reset_attention_mask,
             "Nothing attends to what was before it");
  group.flag("--eod-mask-loss", o.eod_mask_loss, "What follows it is not in the loss");
}

void add_length(CLI::App& app, PretrainOptions& o) {
  Group group(app, "Training");
  group.whole("--global-batch-size", o.global_batch,
              "Sequences a step over all ranks (default: the config's, else --batch x ranks)");
  group
      .option("--rampup-batch-size", o.rampup, "A batch that grows: start, increment, samples", "N")
      ->expected(3)
      ->check(at_least(1));
  group.whole("--train-samples", o.train_samples, "The run's length in sequences", 1, kMany);
  group.whole("--train-tokens", o.train_tokens, "The run's length in tokens", 1, kMany);
  group
      .option("--zero-stage", o.settings.zero_stage,
              "What is sharded: 0, 1, 2, 3 (default: the config's)", "S")
      ->check(one_of({"0", "1", "2", "3"}));
  group.whole("--eval-interval", o.eval_interval, "Steps between evaluations")
      ->capture_default_str();
  group.whole("--eval-iters", o.eval_iters, "Global batches of an evaluation; 0: none", 0)
      ->capture_default_str();
  group.whole("--exit-interval", o.exit_interval, "Ends the run at a multiple of N steps");
  group.flag("--gradient-checkpointing", o.settings.gradient_checkpointing,
             "Keeps the input of every block only and recomputes it in the backward");
  group.whole("--checkpoint-every", o.checkpoint_every, "The same for every N-th block");
  group.option("--recompute-granularity", o.recompute_granularity, "full or selective", "G")
      ->check(one_of({"full", "selective"}));
  group.option("--recompute-method", o.recompute_method, "uniform or block", "M")
      ->check(one_of({"uniform", "block"}));
  group.whole("--recompute-num-layers", o.recompute_num_layers, "Blocks of the method block")
      ->capture_default_str();
  group.flag("--wall-clock-breakdown", o.wall_clock_breakdown,
             "Measures forward, backward, reduction and update; costs some speed");
}

void add_schedule(CLI::App& app, PretrainOptions& o) {
  Group group(app, "Optimizer and schedule");
  DecayOptions& d = o.decay;
  group.number("--lr,--learning-rate", o.settings.learning_rate, "The highest rate");
  group.number("--min-lr", d.min_lr, "The lowest rate")->capture_default_str();
  group.number("--decoupled-lr", d.decoupled_lr,
               "The highest rate of the token table, and of an output table (default: --lr)");
  group.option("--lr-decay-style", d.style, "constant, linear, cosine, inverse-square-root", "S")
      ->check(one_of({"constant", "linear", "cosine", "inverse-square-root"}));
  group.whole("--lr-decay-iters", d.decay_iters, "Steps until --min-lr (default: all)");
  group.whole("--lr-decay-samples", d.decay_samples, "The same in sequences", 1, kMany);
  group.whole("--lr-decay-tokens", d.decay_tokens, "The same in tokens", 1, kMany);
  group.option("--lr-warmup-fraction", d.warmup_fraction, "Part of the decay that warms up", "P")
      ->check(number_within(0, 1));
  group.whole("--lr-warmup-iters", d.warmup_iters, "Steps that warm up", 0);
  group.whole("--lr-warmup-samples", d.warmup_samples, "The same in sequences", 0, kMany);
  group.whole("--lr-warmup-tokens", d.warmup_tokens, "The same in tokens", 0, kMany);
  group.flag("--override-opt-param-scheduler", o.override_schedule,
             "On resume: the schedule of this command line");
  group.flag("--use-checkpoint-opt-param-scheduler", o.use_checkpoint_schedule,
             "On resume: the schedule of the checkpoint");
  group.number("--weight-decay", o.settings.weight_decay, "Weight decay (default 0.01)");
  group
      .option("--weight-decay-incr-style", d.ramp_style,
              "The weight decay over the run: constant, linear, cosine (default constant)", "S")
      ->check(one_of({"constant", "linear", "cosine"}));
  group.number("--start-weight-decay", d.start_weight_decay, "Where a growing one begins");
  group.number("--end-weight-decay", d.end_weight_decay, "Where it ends, with the last step");
  group.number("--clip-grad", o.clip_grad,
               "Largest global norm of the gradient (default 1; 0: off)");
  group.number("--adam-beta1", o.adam_beta1, "Default 0.9");
  group.number("--adam-beta2", o.adam_beta2, "Default 0.999");
  group.number("--adam-eps", o.adam_eps, "Default 1e-8");
}

void add_precision(CLI::App& app, PretrainOptions& o) {
  Group group(app, "Precision");
  group.flag("--fp16", o.fp16, "As --dtype fp16");
  group.flag("--bf16", o.bf16, "As --dtype bf16");
  group.number("--loss-scale", o.loss_scale, "fp16: a fixed loss scale (default: dynamic)");
  group.number("--initial-loss-scale", o.initial_loss_scale, "A power of two (default 65536)");
  group.number("--min-loss-scale", o.min_loss_scale, "Below it the run ends (default 1)");
  group.whole("--loss-scale-window", o.loss_scale_window, "Steps until it doubles (default 1000)");
  group.whole("--hysteresis", o.hysteresis, "Overflows until it halves (default 2)");
}

void add_resume(CLI::App& app, PretrainOptions& o) {
  app.add_option_function<std::string>(
         "--load", [&o](const std::string& folder) { o.resume_from = folder; },
         "Goes on from the newest checkpoint in a folder, if there is one")
      ->type_name("DIR")
      ->group("Run folder");
  app.add_option_function<int64_t>(
         "--distributed-timeout-minutes", [&o](int64_t minutes) { o.timeout_s = minutes * 60; },
         "As --timeout, in minutes")
      ->check(at_least(1))
      ->type_name("MIN")
      ->group("Running");
  app.get_option("--steps")->description("Optimizer steps");
  app.get_option("--num-train-epochs")->description("Passes over the data, in place of --steps");
}

}  // namespace

Action add_pretrain(CLI::App& app, std::function<int(const PretrainOptions&)> run) {
  auto options = std::make_shared<PretrainOptions>();
  add_model(app, *options);
  add_data(app, *options);
  add_length(app, *options);
  add_schedule(app, *options);
  add_precision(app, *options);
  add_train_flags(app, *options);
  add_resume(app, *options);
  app.footer(kFooter);
  return [options, &app, run = std::move(run)] {
    finish_pretrain(*options, [&app](const char* flag) { return app.count(flag) > 0; });
    return run(*options);
  };
}

}  // namespace reknit
