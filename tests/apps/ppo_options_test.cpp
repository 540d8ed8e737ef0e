// From a command line and a config to the options of a PPO run.
#include "apps/command_line.h"
#include "apps/deepspeed_chat.h"
#include "apps/ppo_flags.h"
#include "reknit/base/error.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

namespace reknit {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Args = std::vector<std::string>;

class PpoFlags : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / str("reknit_ppo_flags_", getpid());
    fs::create_directories(root_ / "actor");
    write("actor/config.json", R"({"model_type": "opt"})");
    write("prompts.jsonl", "{\"prompt\": \"a\"}\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(root_ / name) << text;
  }

  /// The options of a run on the CPU with `more` flags; rates are given unless told not to.
  PpoOptions parse(Args more, bool rate = true) {
    Args args = {"ppo",         "--actor",   path("actor"),         "--critic",
                 path("actor"), "--prompts", path("prompts.jsonl"), "--device",
                 "cpu"};
    if (rate) {
      args.insert(args.end(), {"--learning-rate", "1e-5"});
    }
    args.insert(args.end(), more.begin(), more.end());
    PpoOptions out;
    const std::vector<Command> commands = {{"ppo", "p",
                                            [&](CLI::App& app) {
                                              return add_ppo(app, [&](const PpoOptions& options) {
                                                out = options;
                                                return 0;
                                              });
                                            },
                                            &deepspeed_chat_step3()}};
    run_command_line(commands, args);
    return out;
  }

  std::string error_of(const Args& more, bool rate = true) {
    try {
      parse(more, rate);
    } catch (const Error& error) {
      return str(static_cast<int>(error.code()), ": ", error.what(), " | ", error.help());
    }
    return "no error";
  }

  fs::path root_;
};

TEST_F(PpoFlags, DefaultsAreTheDocumentedOnes) {
  const PpoOptions o = parse({});
  EXPECT_EQ(o.seed, 1234);
  EXPECT_EQ(o.keep, 2);
  EXPECT_EQ(o.timeout_s, 600);
  EXPECT_EQ(o.num_train_epochs, 1);
  EXPECT_EQ(o.kl_ctl, 0.1);
  EXPECT_EQ(o.clip_reward_value, 5);
  EXPECT_EQ(o.cliprange, 0.2);
  EXPECT_EQ(o.cliprange_value, 0.2);
  EXPECT_EQ(o.gamma, 1.0);
  EXPECT_EQ(o.lam, 0.95);
  EXPECT_EQ(o.unsup_coef, 27.8);
  EXPECT_EQ(o.sampling.temperature, 1.0);
  EXPECT_EQ(o.sampling.top_p, 1.0);
  EXPECT_EQ(o.sampling.top_k, 0);
  EXPECT_EQ(o.training_batch, 16);
  EXPECT_EQ(o.generation_batch, 16);
  EXPECT_FALSE(o.deepspeed_chat);
  EXPECT_EQ(o.actor.reading.config.precision(), Precision::kFp32);
  EXPECT_EQ(o.actor.reading.config.zero.stage, 0);
  EXPECT_EQ(o.actor.reading.config.optimizer.betas[1], 0.95);
  EXPECT_EQ(o.actor.learning_rate_from, "--learning-rate");
}

TEST_F(PpoFlags, SeveralRanksWithoutAConfigAreZero3) {
  const PpoOptions o = parse({"--ranks", "2"});
  EXPECT_EQ(o.actor.reading.config.zero.stage, 3);
  EXPECT_EQ(o.critic.reading.config.zero.stage, 3);
  EXPECT_EQ(o.actor.reading.batch.global, 32);
  EXPECT_EQ(parse({"--ranks", "2", "--actor_zero_stage", "2"}).actor.reading.config.zero.stage, 2);
}

TEST_F(PpoFlags, NoLearningRateAnywhereIsAnError) {
  EXPECT_THAT(error_of({}, false),
              testing::AllOf(testing::StartsWith("2: actor: "), HasSubstr("9.65e-6")));
  write("ds.json", R"({"optimizer": {"type": "AdamW", "params": {"lr": 2e-5}}})");
  const PpoOptions o = parse({"--config", path("ds.json")}, false);
  EXPECT_EQ(o.actor.reading.config.optimizer.lr, 2e-5);
  EXPECT_EQ(o.critic.reading.config.optimizer.betas[1], 0.95);
  // The betas of PPO are Adam's.
  write("sgd.json", R"({"optimizer": {"type": "SGD", "params": {"lr": 2e-5}}})");
  EXPECT_EQ(parse({"--config", path("sgd.json")}, false).actor.reading.config.optimizer.type,
            "sgd");
}

TEST_F(PpoFlags, FlagAndConfigThatDifferAreAnErrorWithBothValues) {
  write("ds.json", R"({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}})");
  EXPECT_THAT(error_of({"--config", path("ds.json"), "--training-batch", "8"}),
              testing::AllOf(testing::StartsWith("2: "), HasSubstr("= 4"),
                             HasSubstr("--training-batch, which says 8")));
  EXPECT_THAT(error_of({"--config", path("ds.json"), "--actor-zero-stage", "2"}),
              HasSubstr("--actor-zero-stage, which says 2"));
  EXPECT_EQ(parse({"--config", path("ds.json"), "--training-batch", "4"}).training_batch, 4);
  write("fp16.json", R"({"fp16": {"enabled": true}})");
  EXPECT_THAT(error_of({"--config", path("fp16.json"), "--dtype", "bf16"}),
              HasSubstr("--dtype bf16, which says false"));
}

TEST_F(PpoFlags, EachModelHasItsOwnConfig) {
  write("ds.json", R"({"zero_optimization": {"stage": 2}})");
  write("critic.json", R"({"zero_optimization": {"stage": 1}})");
  const PpoOptions o = parse({"--config", path("ds.json"), "--critic-config", path("critic.json"),
                              "--set", "gradient_clipping=0.5", "--set", "steps_per_print=3"});
  EXPECT_EQ(o.actor.reading.config.zero.stage, 2);
  EXPECT_EQ(o.critic.reading.config.zero.stage, 1);
  EXPECT_EQ(o.critic.reading.config.gradient_clipping, 0.5);
  EXPECT_EQ(o.critic.reading.config.steps_per_print, 3);
}

TEST_F(PpoFlags, DeepSpeedChatsCommandLineIsTaken) {
  const PpoOptions o = parse({"--per_device_generation_batch_size",
                              "8",
                              "--per_device_training_batch_size",
                              "4",
                              "--generation_batches",
                              "2",
                              "--ppo_epochs",
                              "3",
                              "--max_answer_seq_len",
                              "32",
                              "--max_prompt_seq_len",
                              "64",
                              "--gradient_accumulation_steps",
                              "2",
                              "--deepspeed",
                              "--enable_hybrid_engine",
                              "--actor_zero_stage",
                              "3",
                              "--num_warmup_steps",
                              "5",
                              "--lr_scheduler_type",
                              "cosine",
                              "--actor_gradient_checkpointing",
                              "--enable_ema",
                              "--output_dir",
                              path("run"),
                              "--local_rank",
                              "-1"});
  EXPECT_EQ(o.generation_batch, 8);
  EXPECT_EQ(o.training_batch, 4);
  EXPECT_EQ(o.actor.reading.batch.global, 8);
  EXPECT_EQ(o.max_answer_len, 32);
  EXPECT_EQ(o.lr_scheduler, LrScheduler::kCosine);
  EXPECT_TRUE(o.actor.gradient_checkpointing);
  EXPECT_FALSE(o.critic.gradient_checkpointing);
  EXPECT_EQ(o.out, path("run"));
}

TEST_F(PpoFlags, ARunFolderInUseNeedsAWord) {
  fs::create_directories(root_ / "run");
  EXPECT_EQ(error_of({"--out", path("run")}), "no error");
  write("run/summary.json", "{}");
  EXPECT_THAT(error_of({"--out", path("run")}),
              testing::AllOf(testing::StartsWith("2: "), HasSubstr("--overwrite")));
  EXPECT_EQ(error_of({"--out", path("run"), "--overwrite"}), "no error");
  EXPECT_THAT(error_of({"--out", path("run"), "--overwrite", "--resume", "auto"}),
              testing::AllOf(testing::StartsWith("2: "), HasSubstr("contradicts --overwrite")));
  EXPECT_EQ(error_of({"--out", path("run"), "--resume", "auto"}), "no error");
  EXPECT_THAT(error_of({"--resume", path("nowhere")}), testing::StartsWith("3: "));
  EXPECT_THAT(error_of({"--resume", "auto"}), testing::StartsWith("2: "));
}

TEST_F(PpoFlags, MissingFilesAreInputErrorsThatNameTheFlag) {
  EXPECT_THAT(error_of({"--config", path("none.json")}),
              testing::AllOf(testing::StartsWith("3: --config"), HasSubstr("none.json")));
  EXPECT_THAT(error_of({"--reward", path("none")}), testing::StartsWith("3: --reward"));
}

TEST_F(PpoFlags, TwoRewardsAreAnError) {
  EXPECT_THAT(error_of({"--reward", path("actor"), "--reward-cmd", "x"}),
              testing::StartsWith("2: "));
}

TEST_F(PpoFlags, ACriticsOwnConfigChangesNoBatchAndNoScheduleUnsaid) {
  write("batch.json", R"({"train_micro_batch_size_per_gpu": 8})");
  write("steps.json", R"({"gradient_accumulation_steps": 3})");
  write("lr.json", R"({"scheduler": {"type": "WarmupLR"}})");
  EXPECT_THAT(
      error_of({"--batch", "4", "--critic-config", path("steps.json")}),
      HasSubstr("2: --critic-config: gradient_accumulation_steps = 3, and the actor's is 1"));
  EXPECT_THAT(error_of({"--critic-config", path("batch.json")}),
              HasSubstr("train_micro_batch_size_per_gpu = 8, and the actor's is 16"));
  EXPECT_EQ(parse({"--batch", "8", "--critic-config", path("batch.json")}).training_batch, 8);
  EXPECT_EQ(parse({"--actor-config", path("batch.json"), "--critic-config", path("lr.json")})
                .critic.reading.config.scheduler.type,
            "WarmupLR");
  EXPECT_THAT(error_of({"--critic-config", path("lr.json"), "--lr-scheduler-type", "cosine"}),
              HasSubstr("scheduler.type = WarmupLR of the critic's config"));
}

TEST_F(PpoFlags, DeepSpeedChatsSamplingIsThatOfTheActorsFolder) {
  const Args chat = {"--compat", "deepspeed-chat"};
  EXPECT_EQ(parse(chat).sampling.temperature, 0) << "do_sample is false where nothing says it";
  write("actor/generation_config.json",
        R"({"do_sample": true, "temperature": 0.7, "top_p": 0.9, "min_new_tokens": 3,
            "repetition_penalty": 1.0, "bad_words_ids": [], "eos_token_id": 2})");
  const SamplingOptions found = parse(chat).sampling;
  EXPECT_EQ(found.temperature, 0.7);
  EXPECT_EQ(found.top_k, 50) << "as transformers, where the file does not say it";
  EXPECT_EQ(found.top_p, 0.9);
  EXPECT_EQ(found.min_new_tokens, 3);
  const SamplingOptions strict = parse({}).sampling;
  EXPECT_EQ(strict.temperature, 1);
  EXPECT_EQ(strict.top_k, 0);
  EXPECT_EQ(strict.top_p, 1);
  EXPECT_EQ(strict.min_new_tokens, 0);
}

TEST_F(PpoFlags, AFlagFillsGapsOfTheActorsSamplingAndContradictsNothing) {
  write("actor/generation_config.json", R"({"do_sample": true, "temperature": 0.7})");
  const auto with = [](Args more) {
    more.insert(more.end(), {"--compat", "deepspeed-chat"});
    return more;
  };
  EXPECT_EQ(parse(with({"--top-k", "7", "--temperature", "0.7"})).sampling.top_k, 7);
  EXPECT_THAT(error_of(with({"--temperature", "1"})),
              testing::AllOf(testing::StartsWith("2: --temperature 1 contradicts"),
                             HasSubstr("temperature = 0.7")));
  EXPECT_EQ(parse({"--temperature", "1"}).sampling.temperature, 1);
  write("actor/generation_config.json", R"({"do_sample": false})");
  EXPECT_THAT(error_of(with({"--temperature", "1"})), HasSubstr("do_sample = false"));
  EXPECT_THAT(error_of(with({"--top-p", "0.5"})), HasSubstr("--top-p has no effect"));
}

TEST_F(PpoFlags, SamplingThatIsNotBuiltIsRefusedNotDropped) {
  write("actor/generation_config.json", R"({"do_sample": true, "repetition_penalty": 1.2})");
  EXPECT_THAT(error_of({"--compat", "deepspeed-chat"}),
              testing::AllOf(testing::StartsWith("3: "), HasSubstr("repetition_penalty = 1.2")));
  EXPECT_EQ(error_of({}), "no error");
  write("actor/generation_config.json", R"({"temperature": "warm"})");
  EXPECT_THAT(error_of({"--compat", "deepspeed-chat"}), testing::StartsWith("3: "));
}

TEST_F(PpoFlags, NotesOfASharedConfigAreSaidOnce) {
  write("ds.json", R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": 5}})");
  const auto count = [&](const Args& more) {
    testing::internal::CaptureStderr();
    parse(more);
    const std::string said = testing::internal::GetCapturedStderr();
    size_t lines = 0;
    for (size_t at = said.find("reduce_bucket_size"); at != std::string::npos;
         at = said.find("reduce_bucket_size", at + 1)) {
      ++lines;
    }
    return lines;
  };
  EXPECT_EQ(count({"--config", path("ds.json")}), 1U);
}

}  // namespace
}  // namespace reknit
