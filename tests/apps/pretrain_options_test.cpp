// From a command line and a config to the options of a pretraining run.
#include "apps/command_line.h"
#include "apps/megatron.h"
#include "apps/pretrain_flags.h"
#include "apps/pretrain_inputs.h"
#include "reknit/base/error.h"
#include "tests/support/temp_folder.h"

#include <gmock/gmock.h>

namespace reknit {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Args = std::vector<std::string>;

class PretrainFlags : public testing::Test {
 protected:
  void SetUp() override {
    spit(root_ / "config.json", R"({"model_type": "gpt2", "vocab_size": 50, "n_embd": 8,
                                    "n_layer": 1, "n_head": 2, "n_positions": 32})");
    TokenFileWriter writer(root_ / "tokens", TokenType::kU16);
    for (int i = 0; i < 100; ++i) {
      writer.add_sequence(std::vector<int64_t>(17, i % 50));
      writer.end_document();
    }
    writer.commit();
  }

  /// The options of `more` on the CPU; the base is complete.
  PretrainOptions parse(Args more, Args base = {}) {
    if (base.empty()) {
      base = {"--model",      root_ / "config.json",
              "--seq-length", "16",
              "--steps",      "10",
              "--lr",         "1e-3",
              "--batch",      "2"};
    }
    Args args = {"pretrain", "--data", root_ / "tokens", "--device", "cpu"};
    args.insert(args.end(), base.begin(), base.end());
    args.insert(args.end(), more.begin(), more.end());
    PretrainOptions out;
    const std::vector<Command> commands = {{"pretrain", "p",
                                            [&](CLI::App& app) {
                                              return add_pretrain(
                                                  app, [&](const PretrainOptions& options) {
                                                    out = options;
                                                    return 0;
                                                  });
                                            },
                                            &megatron_pretrain()}};
    run_command_line(commands, args);
    return out;
  }

  std::string error_of(const Args& more, const Args& base = {}) {
    try {
      const PretrainOptions options = parse(more, base);
      const PretrainInputs inputs = read_pretrain_inputs(options);
      sample_schedule(options, total_steps(options, inputs));
    } catch (const Error& error) {
      return str(static_cast<int>(error.code()), ": ", error.what(), " | ", error.help());
    }
    return "no error";
  }

  TempFolder root_;
};

TEST_F(PretrainFlags, DefaultsAreTheDocumentedOnes) {
  const PretrainOptions o = parse({});
  EXPECT_EQ(o.split, "969,30,1");
  EXPECT_EQ(o.eval_interval, 1000);
  EXPECT_EQ(o.eval_iters, 100);
  const DeepSpeedConfig& config = o.settings.reading.config;
  EXPECT_EQ(config.optimizer.weight_decay, 0.01);
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.9, 0.999}));
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.zero.stage, 0);
  EXPECT_EQ(batch_plan(o).at(0), 2);
  EXPECT_FALSE(sample_schedule(o, 10).has_value());
  EXPECT_FALSE(checkpointing(o).recomputes(0));
  EXPECT_EQ(parse({"--ranks", "3"}).settings.reading.config.zero.stage, 3);
}

TEST_F(PretrainFlags, TheShapeFlagsMakeAGpt2) {
  const Args shape = {"--num-layers",          "2", "--hidden-size", "8",
                      "--num-attention-heads", "2", "--seq-length",  "16",
                      "--train-iters",         "3", "--lr",          "1e-3",
                      "--micro-batch-size",    "1", "--vocab-size",  "50"};
  const PretrainInputs inputs = read_pretrain_inputs(parse({}, shape));
  EXPECT_EQ(inputs.spec.model_type, "gpt2");
  EXPECT_EQ(inputs.spec.vocab, 128);
  EXPECT_EQ(inputs.spec.ffn, 32);
  EXPECT_EQ(inputs.spec.max_positions, 16);
  EXPECT_EQ(inputs.spec.hidden_dropout, 0.1);
  EXPECT_EQ(inputs.spec.attention_dropout, 0.1);
  EXPECT_FALSE(inputs.has_weights);
  const PretrainInputs none = read_pretrain_inputs(
      parse({"--hidden-dropout", "0", "--make-vocab-size-divisible-by", "1"}, shape));
  EXPECT_EQ(none.spec.hidden_dropout, 0.0);
  EXPECT_EQ(none.spec.embed_dropout, 0.0);
  EXPECT_EQ(none.spec.vocab, 50);
  Args unknown(shape.begin(), shape.end() - 2);
  EXPECT_THAT(error_of({}, unknown), testing::AllOf(StartsWith("2: "), HasSubstr("--vocab-size")));
}

TEST_F(PretrainFlags, ScheduleAndBatchFollowMegatronsRules) {
  const PretrainOptions o = parse(
      {"--global-batch-size", "7", "--min-lr", "1e-4", "--lr-warmup-iters", "2", "--ranks", "2"});
  EXPECT_EQ(batch_plan(o).at(0), 7);
  const Schedule schedule = sample_schedule(o, 10).value();
  EXPECT_EQ(schedule.kind, ScheduleKind::kMegatronLinear);
  EXPECT_EQ(schedule.warmup, 14);
  EXPECT_EQ(schedule.total, 70);
  EXPECT_EQ(schedule.at(0, 1e-3), 0.0);
  EXPECT_DOUBLE_EQ(schedule.at(7, 1e-3), 5e-4);
  EXPECT_DOUBLE_EQ(schedule.at(42, 1e-3), 1e-4 + 9e-4 * 0.5);
  EXPECT_EQ(schedule.at(71, 1e-3), 1e-4);
  EXPECT_EQ(parse({"--lr-decay-style", "cosine", "--lr-warmup-fraction", "0.2"}).decay.style,
            "cosine");
}

TEST_F(PretrainFlags, TheWeightDecayGrowsOverTheSamplesOfTheRun) {
  const Args ends = {"--start-weight-decay", "0.1", "--end-weight-decay", "0.5"};
  Args linear = {"--weight-decay-incr-style", "linear", "--global-batch-size", "4"};
  linear.insert(linear.end(), ends.begin(), ends.end());
  const PretrainOptions o = parse(linear);
  const DecayRamp ramp = weight_decay_ramp(o, 10).value();
  EXPECT_EQ(ramp.at(0), 0.1);
  EXPECT_DOUBLE_EQ(ramp.at(20), 0.3);
  EXPECT_DOUBLE_EQ(ramp.at(39), 0.1 + 0.4 * 39 / 40);
  EXPECT_EQ(ramp.at(40), 0.5);
  EXPECT_EQ(o.settings.reading.config.optimizer.weight_decay, 0.1);
  // The rate stays constant, in samples.
  EXPECT_EQ(sample_schedule(o, 10).value().at(20, 1e-3), 1e-3);
  linear[1] = "cosine";
  EXPECT_DOUBLE_EQ(weight_decay_ramp(parse(linear), 10).value().at(10),
                   0.1 + 0.4 * 0.5 * (1 - std::sqrt(0.5)));
  EXPECT_FALSE(weight_decay_ramp(parse({"--weight-decay-incr-style", "constant"}), 10));
  EXPECT_FALSE(weight_decay_ramp(parse({}), 10));
  linear.insert(linear.end(), {"--weight-decay", "0.1"});
  EXPECT_EQ(weight_decay_ramp(parse(linear), 10).value().start, 0.1);
}

TEST_F(PretrainFlags, AWeightDecayThatContradictsItselfIsRefusedWithBothValues) {
  const auto refused = [&](const Args& flags, const std::string& one, const std::string& other) {
    EXPECT_THAT(error_of(flags),
                testing::AllOf(StartsWith("2: "), HasSubstr(one), HasSubstr(other)));
  };
  const std::string start = "--start-weight-decay", end = "--end-weight-decay";
  const std::string style = "--weight-decay-incr-style";
  refused({start, "0.1", end, "0.5"}, "--start-weight-decay is 0.1", "style is not given");
  refused({end, "0.5", style, "constant"}, "--end-weight-decay 0.5", "style is constant");
  refused({start, "0.1", style, "linear"}, "--start-weight-decay is 0.1", "decay not given");
  refused({start, "0.5", end, "0.1", style, "cosine"}, "is 0.5", "0.1");
  refused({start, "0.1", end, "0.5", style, "linear", "--weight-decay", "0.3"}, "0.1", "0.3");
  refused({start, "0.1", end, "0.5", style, "linear", "--set", "optimizer.params.weight_decay=0.3"},
          "--start-weight-decay, which says 0.1", "0.3");
  refused({start, "0.1", end, "0.5", style, "linear", "--set", "scheduler.type=WarmupLR"},
          "WarmupLR", "the flags of the schedule");
}

TEST_F(PretrainFlags, ASecondRateNeedsAScheduleOfMegatrons) {
  EXPECT_EQ(parse({"--decoupled-lr", "2e-3"}).decay.style, "constant");
  EXPECT_THAT(error_of({"--decoupled-lr", "1e-5", "--min-lr", "1e-4"}),
              testing::AllOf(StartsWith("2: "), HasSubstr("0.0001"), HasSubstr("1e-05")));
  EXPECT_THAT(error_of({"--decoupled-lr", "1e-3", "--set", "scheduler.type=WarmupLR"}),
              HasSubstr("WarmupLR"));
  EXPECT_THAT(error_of({"--decoupled-min-lr", "1e-5"}), HasSubstr("--min-lr"));
}

TEST_F(PretrainFlags, RecomputationHasThreeSpellings) {
  EXPECT_TRUE(checkpointing(parse({"--checkpoint-activations"})).recomputes(1));
  const Checkpointing every = checkpointing(parse({"--checkpoint-every", "2"}));
  EXPECT_TRUE(every.recomputes(0) && every.recomputes(2) && !every.recomputes(1));
  const Checkpointing block =
      checkpointing(parse({"--recompute-granularity", "full", "--recompute-method", "block",
                           "--recompute-num-layers", "2"}));
  EXPECT_TRUE(block.recomputes(0) && block.recomputes(1) && !block.recomputes(2));
  EXPECT_FALSE(checkpointing(parse({"--recompute-granularity", "selective"})).recomputes(0));
}

TEST_F(PretrainFlags, WhatIsWrongIsSaidWithItsFlags) {
  const std::string model = root_ / "config.json";
  const std::vector<std::tuple<Args, Args, std::string, std::string>> cases = {
      {{"--load", "x", "--resume", "auto"}, {}, "2: ", "--resume auto"},
      {{"--train-samples", "5"}, {}, "2: ", "--steps and --train-samples"},
      {{"--min-lr", "1"}, {}, "2: ", "--min-lr 1"},
      {{"--lr-warmup-iters", "10", "--lr-decay-style", "linear"}, {}, "2: ", "warm-up of 20"},
      {{"--initial-loss-scale", "3"}, {}, "2: ", "power of two"},
      {{"--num-layers", "2"}, {}, "2: ", "contradicts --model"},
      {{"--eod-mask-loss", "--eod-token", "3", "--split", "0,1,0"}, {}, "2: ", "nothing to train"},
      {{"--dtype", "fp32", "--bf16"}, {}, "2: ", "contradicts"},
      {{"--rampup-batch-size", "1", "1", "5"}, {}, "2: ", "--global-batch-size"},
      {{"--rampup-batch-size", "1", "2", "5", "--global-batch-size", "4"}, {}, "2: ", "multiple"},
      {{"--recompute-method", "block"}, {}, "2: ", "--recompute-granularity full"},
      {{}, {"--model", model, "--steps", "1", "--lr", "1", "--batch", "1"}, "2: ", "--seq-length"},
      {{},
       {"--model", model, "--seq-length", "8", "--lr", "1", "--batch", "1"},
       "2: ",
       "--steps N"},
      {{}, {"--model", model, "--seq-length", "8", "--steps", "1", "--batch", "1"}, "2: ", "rate"},
      {{}, {"--seq-length", "8", "--steps", "1"}, "2: ", "there is no model"},
      {{},
       {"--model", model, "--seq-length", "64", "--steps", "1", "--lr", "1", "--batch", "1"},
       "3: ",
       "32 positions"},
  };
  for (const auto& [more, base, code, part] : cases) {
    EXPECT_THAT(error_of(more, base), testing::AllOf(StartsWith(code), HasSubstr(part)));
  }
}

}  // namespace
}  // namespace reknit
