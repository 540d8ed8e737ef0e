#include "apps/shared_flags.h"

#include "apps/outputs.h"
#include "apps/validators.h"
#include "reknit/checkpoint/hf_folder.h"

#include <filesystem>
#include <fstream>

namespace reknit {
namespace {

namespace fs = std::filesystem;

bool has_content(const std::string& folder) {
  return fs::exists(folder) && (!fs::is_directory(folder) || !fs::is_empty(folder));
}

}  // namespace

void add_seed_flag(CLI::App& app, int64_t& seed) {
  app.add_option("--seed", seed, "Key of every random stream")
      ->check(at_least(0, INT64_MAX - 1))
      ->type_name("S")
      ->capture_default_str()
      ->group("Running");
}

Precision precision_named(const std::string& name) {
  return name == "bf16" ? Precision::kBf16 : name == "fp16" ? Precision::kFp16 : Precision::kFp32;
}

void add_run_flags(CLI::App& app, RunOptions& o) {
  const std::string running = "Running";
  app.add_option("--config", o.config_file, "A DeepSpeed JSON config (comments are fine)")
      ->type_name("FILE")
      ->group(running);
  app.add_option("--set", o.sets, "Overrides one key of it: zero_optimization.stage=3")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(running);
  constexpr int64_t kMostThreads = 4096;
  app.add_option("--ranks", o.ranks, "Ranks, as threads (default: all GPUs, or 1 on the CPU)")
      ->check(at_least(1, kMostThreads))
      ->type_name("N")
      ->group(running);
  app.add_option("--nodes", o.nodes, "Spreads them over N equal nodes (default: the launcher's)")
      ->check(at_least(1))
      ->type_name("N")
      ->group(running);
  app.add_option("--device", o.device, "cpu or cuda (default: cuda if there is a GPU)")
      ->check(one_of({"cpu", "cuda"}))
      ->type_name("D")
      ->group(running);
  app.add_flag("--share-gpus", o.share_gpus, "Allows more ranks than GPUs")->group(running);
  app.add_option("--dtype", o.dtype,
                 "fp32, bf16, fp16 (default: the config's; else bf16, CPU fp32)")
      ->check(one_of({"fp32", "bf16", "fp16"}))
      ->type_name("T")
      ->group(running);
  app.add_option("--batch", o.batch, "Sequences a rank at a time")
      ->check(at_least(1))
      ->type_name("B")
      ->group(running);
  add_seed_flag(app, o.seed);
  app.add_flag("--deterministic", o.deterministic,
               "The same bits again on GPUs too; costs some speed there")
      ->group(running);
  app.add_option("--timeout", o.timeout_s, "Seconds a collective may take")
      ->check(at_least(1))
      ->type_name("SECONDS")
      ->capture_default_str()
      ->group(running);
  app.add_option("--trace", o.trace_file,
                 "Life of every group and collective, for Chrome or Perfetto")
      ->type_name("FILE")
      ->group(running);
}

void add_train_flags(CLI::App& app, TrainOptions& o) {
  add_run_flags(app, o);
  const std::string folder = "Run folder";
  app.add_option("--steps", o.steps, "Optimizer steps (default: one pass over the data)")
      ->check(at_least(1))
      ->type_name("N")
      ->group("Running");
  app.add_option("--num-train-epochs", o.num_train_epochs, "Passes over the data")
      ->check(at_least(1))
      ->type_name("N")
      ->capture_default_str()
      ->group("Running");
  app.add_option_function<std::string>(
         "--compat",
         [&o](const std::string& value) { o.deepspeed_chat = value == "deepspeed-chat"; },
         "strict (default) or deepspeed-chat: its per-rank means and index rules")
      ->check(one_of({"strict", "deepspeed-chat"}))
      ->type_name("MODE")
      ->group("Running");
  app.add_option("--out", o.out, "Run folder: metrics.jsonl, checkpoints, models")
      ->type_name("DIR")
      ->group(folder);
  app.add_flag("--overwrite", o.overwrite, "Empties a run folder that is not empty")->group(folder);
  app.add_option("--save-interval", o.save_interval, "Steps between checkpoints (default: none)")
      ->check(at_least(1))
      ->type_name("N")
      ->group(folder);
  app.add_flag("--sync-save", o.sync_save,
               "Waits for each checkpoint (default: a copy in host memory is written meanwhile)")
      ->group(folder);
  app.add_option("--keep", o.keep, "Checkpoints kept")
      ->check(at_least(1))
      ->type_name("K")
      ->capture_default_str()
      ->group(folder);
  app.add_option(
         "--resume", o.resume,
         "auto: the newest in --out, else a fresh start; or a folder, also DeepSpeed's (pretrain)")
      ->type_name("auto|DIR")
      ->group(folder);
  app.add_option("--time-limit", o.time_limit_min, "Saves and ends after so many minutes")
      ->check(not_negative())
      ->type_name("MIN")
      ->group(folder);
  app.add_option("--log-interval", o.log_interval, "Steps between printed lines")
      ->check(at_least(1))
      ->type_name("N")
      ->group(folder);
  app.add_option_function<std::vector<std::string>>(
         "--tensorboard",
         [&o](const std::vector<std::string>& folder) {
           o.tensorboard = true;
           o.tensorboard_dir = folder.empty() ? "" : folder.front();
         },
         "Event files for TensorBoard (default folder: tensorboard in --out)")
      ->expected(0, 1)
      ->trigger_on_parse()
      ->type_name("[DIR]")
      ->group(folder);
  const CLI::callback_t no_wandb = [](const CLI::results_t&) -> bool {
    throw UsageError("--wandb: Reknit opens no connection, so it cannot log to a service",
                     "pass --tensorboard DIR; `wandb sync DIR` uploads its files");
  };
  app.add_option("--wandb", no_wandb, "Refused: nothing is sent anywhere; see --tensorboard")
      ->expected(0, 1)
      ->type_name("PROJECT")
      ->group(folder);
}

void require_file(const std::string& flag, const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    throw InputError(str(flag, " ", path, ": there is no such file"), "check the path");
  }
  if (fs::is_directory(path, ignored)) {
    throw InputError(str(flag, " ", path, " is a folder, not a file"), "name a file in it");
  }
  if (!std::ifstream(path).is_open()) {
    throw InputError(str(flag, " ", path, " cannot be read"), "check its permissions");
  }
}

void require_files(const std::string& flag, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    require_file(flag, path);
  }
}

std::string require_model(const std::string& flag, const std::string& path) {
  if (path.empty()) {
    return "";
  }
  try {
    return find_hf_folder(path);
  } catch (const InputError& error) {
    throw InputError(str(flag, ": ", error.what()), error.help());
  }
}

std::string require_model_config(const std::string& flag, const std::string& path) {
  std::error_code none;
  if (path.empty() || fs::is_regular_file(path, none)) {
    return path;
  }
  const std::string file = (fs::path(require_model(flag, path)) / "config.json").string();
  require_file(flag, file);
  return file;
}

void finish_run(RunOptions& o) {
  if (!o.config_file.empty()) {
    require_file("--config", o.config_file);
  }
  require_out_file("--trace", o.trace_file);
  o.place = resolve_place(o);
}

void finish_train(TrainOptions& o) {
  const bool resumes_here = o.resume == "auto" && o.resume_from.empty();
  if (o.out.empty() && (o.save_interval || resumes_here)) {
    throw UsageError(
        str(o.save_interval ? "--save-interval" : "--resume auto", " needs a run folder"),
        "pass --out DIR");
  }
  if (!o.resume.empty() && o.overwrite) {
    throw UsageError(
        str("--resume ", o.resume, " contradicts --overwrite, which empties the folder"),
        "leave --overwrite out");
  }
  if (!o.resume.empty() && o.resume != "auto" && !fs::is_directory(o.resume)) {
    throw InputError(str("--resume ", o.resume, ": there is no such folder"),
                     "name a checkpoint's folder, or auto");
  }
  if (o.tensorboard && o.tensorboard_dir.empty()) {
    if (o.out.empty()) {
      throw UsageError("--tensorboard needs a folder", "pass --tensorboard DIR, or --out");
    }
    o.tensorboard_dir = o.out + "/tensorboard";
  }
  finish_run(o);
  // Rank 0 owns the folder: a slower process may already find its files there.
  const bool owner = o.place.leads();
  const bool goes_on = !o.resume.empty() && o.resume_from.empty();
  if (owner && !o.out.empty() && !goes_on && !o.overwrite && has_content(o.out)) {
    throw UsageError(str("--out ", o.out, " is not empty"),
                     "pass --resume auto to go on with it, --overwrite to start again in it, or "
                     "another folder");
  }
}

}  // namespace reknit
