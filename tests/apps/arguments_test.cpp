// Flag names, unknown flags, DeepSpeed-Chat's flags.
#include "apps/arguments.h"

#include "apps/command_line.h"
#include "apps/deepspeed_chat.h"
#include "apps/megatron.h"
#include "apps/ppo_flags.h"
#include "apps/pretrain_flags.h"
#include "reknit/base/error.h"
#include "tests/support/golden.h"

#include <gmock/gmock.h>
#include <CLI/App.hpp>

#include <fstream>
#include <set>

namespace reknit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Args = std::vector<std::string>;

TEST(Arguments, UnderscoresAreDashesInNamesOnly) {
  EXPECT_THAT(
      normalise_flags({"ppo", "--max_prompt_seq_len", "a_b", "--out_dir=x_y", "--", "--a_b"}),
      ElementsAre("ppo", "--max-prompt-seq-len", "a_b", "--out-dir=x_y", "--", "--a_b"));
}

TEST(Arguments, TheNearestNameIsFoundAndNothingFarAway) {
  EXPECT_EQ(nearest_name("--rank", {"--ranks", "--resume"}), "--ranks");
  EXPECT_EQ(nearest_name("--zzz", {"--ranks", "--resume"}), "");
}

Args translate(const Args& args, size_t wanted_notes = 0,
               const ForeignFlags& table = deepspeed_chat_step3()) {
  std::vector<std::string> notes;
  Args out = translate_flags(table, args, notes);
  EXPECT_EQ(notes.size(), wanted_notes);
  return out;
}

TEST(DeepSpeedChat, AliasesBecomeOurs) {
  EXPECT_THAT(translate({"ppo", "--actor-model-name-or-path", "x", "--output-dir=y"}),
              ElementsAre("ppo", "--actor", "x", "--out=y"));
}

TEST(DeepSpeedChat, FlagsWithoutMeaningGoWithTheirValuesAndANote) {
  EXPECT_THAT(translate({"--local-rank", "-1", "--deepspeed", "--enable-hybrid-engine", "--seed",
                         "7", "--data-split=2,4,4"},
                        4),
              ElementsAre("--seed", "7"));
}

TEST(DeepSpeedChat, RefusedFlagsAreErrorsUnlessTheyAskForNothing) {
  EXPECT_THROW(translate({"--actor-lora-dim", "128"}), UsageError);
  EXPECT_THROW(translate({"--offload"}), UsageError);
  EXPECT_THROW(translate({"--inference-tp-size=2"}), UsageError);
  EXPECT_THAT(translate({"--actor-lora-dim", "0", "--inference-tp-size=1"}), ElementsAre());
}

// Every name is there once, and every flag of ours that it promises exists.
void expect_promises_kept(const ForeignFlags& table, const CLI::App& app) {
  std::set<std::string_view> names;
  for (const ForeignFlag& flag : table.flags) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
    EXPECT_EQ(flag.name.find('_'), std::string_view::npos) << flag.name;
    const CLI::Option* ours = nullptr;
    if (flag.fate == FlagFate::kSame) {
      ours = app.get_option_no_throw("--" + std::string(flag.name));
    } else if (flag.fate == FlagFate::kAlias) {
      ours = app.get_option_no_throw("--" + std::string(flag.ours));
    } else {
      EXPECT_FALSE(flag.sentence.empty()) << flag.name;
      EXPECT_EQ(app.get_option_no_throw("--" + std::string(flag.name)), nullptr) << flag.name;
      continue;
    }
    EXPECT_NE(ours, nullptr) << flag.name;
  }
}

void expect_documented(const ForeignFlags& table) {
  std::ifstream file(source_root() / "docs" / table.page);
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(page, HasSubstr(flags_markdown(table)));
}

TEST(DeepSpeedChat, EveryNameItPromisesIsAFlagOfPpo) {
  CLI::App app;
  add_ppo(app, [](const PpoOptions&) { return 0; });
  expect_promises_kept(deepspeed_chat_step3(), app);
}

TEST(DeepSpeedChat, TheDocumentationHoldsTheTable) {
  expect_documented(deepspeed_chat_step3());
}

TEST(Megatron, EveryNameItPromisesIsAFlagOfPretrain) {
  CLI::App app;
  add_pretrain(app, [](const PretrainOptions&) { return 0; });
  expect_promises_kept(megatron_pretrain(), app);
}

TEST(Megatron, TheDocumentationHoldsTheTable) {
  expect_documented(megatron_pretrain());
}

TEST(Megatron, ItsCommandLineBecomesOurs) {
  EXPECT_THAT(translate({"pretrain", "--train-iters", "5", "--micro-batch-size", "2", "--data-path",
                         "0.7", "a", "0.3", "b", "--deepspeed", "--tensor-model-parallel-size", "1",
                         "--data-impl", "mmap", "--deepspeed-config=ds.json"},
                        2, megatron_pretrain()),
              ElementsAre("pretrain", "--steps", "5", "--batch", "2", "--data", "0.7", "a", "0.3",
                          "b", "--config=ds.json"));
  EXPECT_THROW(translate({"--tensor-model-parallel-size", "2"}, 0, megatron_pretrain()),
               UsageError);
  EXPECT_THROW(translate({"--swiglu"}, 0, megatron_pretrain()), UsageError);
}

struct Outcome {
  int code = -1;
  std::string error;
};

Outcome run(const Args& args) {
  const std::vector<Command> commands = {
      {"ppo", "p", [](CLI::App& app) { return add_ppo(app, [](const PpoOptions&) { return 7; }); },
       &deepspeed_chat_step3()}};
  try {
    return {run_command_line(commands, args), ""};
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), str(error.what(), " | ", error.help())};
  }
}

TEST(CommandLine, UnknownNamesAreErrorsThatNameTheNearest) {
  EXPECT_THAT(run({"pppo"}).error, HasSubstr("there is no command pppo | did you mean ppo?"));
  EXPECT_THAT(run({"ppo", "--actr", "x"}).error,
              HasSubstr("there is no flag --actr | did you mean --actor?"));
  EXPECT_EQ(run({"ppo", "--actr", "x"}).code, 2);
}

TEST(CommandLine, MissingAndBadValuesAreUsageErrors) {
  EXPECT_THAT(run({"ppo", "--prompts", "x"}).error, HasSubstr("--actor"));
  EXPECT_EQ(run({"ppo", "--actor", "a", "--prompts", "x", "--ranks", "0"}).code, 2);
  EXPECT_EQ(run({"ppo", "--actor", "a", "--prompts", "x", "--dtype", "int8"}).code, 2);
  EXPECT_EQ(run({"ppo", "--actor", "a", "--prompts", "x", "--top_p", "1.5"}).code, 2);
  EXPECT_EQ(run({"ppo", "--actor", "a", "--prompts", "x", "--wandb", "y"}).code, 2);
  EXPECT_EQ(run({"ppo", "--actor", "/nonexistent/a", "--prompts", "x"}).code, 3);
}

TEST(CommandLine, HelpEndsWithZero) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(run({"ppo", "--help"}).code, 0);
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              testing::AllOf(HasSubstr("Examples:"), HasSubstr("--kl-ctl")));
}

}  // namespace
}  // namespace reknit
