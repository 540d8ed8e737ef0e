// The reknit command.
#include "apps/check_flags.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/data_flags.h"
#include "apps/deepspeed_chat.h"
#include "apps/env_flags.h"
#include "apps/export_flags.h"
#include "apps/generate_flags.h"
#include "apps/init_flags.h"
#include "apps/megatron.h"
#include "apps/plan_flags.h"
#include "apps/ppo_flags.h"
#include "apps/pretrain_flags.h"
#include "apps/report_error.h"
#include "apps/report_flags.h"
#include "apps/score_flags.h"
#include "reknit/base/torch_log.h"

#include <CLI/App.hpp>

#include <csignal>

int main(int argc, char** argv) {
  // A reader of our output that has gone away (`| head`) ends no run.
  std::signal(SIGPIPE, SIG_IGN);
  reknit::quiet_torch();
  using reknit::Command;
  const std::vector<Command> commands = {
      {"ppo", "Step 3 of RLHF: PPO with actor, critic, reference and reward",
       [](CLI::App& app) { return reknit::add_ppo(app, reknit::run_ppo); },
       &reknit::deepspeed_chat_step3()},
      {"pretrain", "GPT pretraining from token files",
       [](CLI::App& app) { return reknit::add_pretrain(app, reknit::run_pretrain); },
       &reknit::megatron_pretrain()},
      {"generate", "Answers to prompts",
       [](CLI::App& app) { return reknit::add_generate(app, reknit::run_generate); }},
      {"score", "Log-probabilities and loss of given texts, or values",
       [](CLI::App& app) { return reknit::add_score(app, reknit::run_score); }},
      {"data", "Token files for pretraining: build them from text, or show them",
       [](CLI::App& app) {
         return reknit::add_data(app, reknit::run_data_build, reknit::run_data_show);
       }},
      {"check", "Judge a config: what it will do, and all that is wrong with it",
       [](CLI::App& app) { return reknit::add_check(app, reknit::run_check); }},
      {"plan", "What a run will take: memory, bytes moved, seconds; and what fits",
       [](CLI::App& app) { return reknit::add_plan(app, reknit::run_plan); }},
      {"report", "A run folder as a page of plots; several runs beside each other",
       [](CLI::App& app) { return reknit::add_report(app, reknit::run_report); }},
      {"init", "A Hugging Face folder with random weights",
       [](CLI::App& app) { return reknit::add_init(app, reknit::run_init); }},
      {"export", "A Hugging Face folder out of a checkpoint",
       [](CLI::App& app) { return reknit::add_export(app, reknit::run_export); }},
      {"env", "Versions, devices, launcher; what is built in and what is missing",
       [](CLI::App& app) { return reknit::add_env(app, reknit::run_env); }},
  };
  try {
    return reknit::run_command_line(commands, std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    return reknit::report_error(error);
  }
}
