// The flags that several commands share, and the checks that follow parsing.
#pragma once

#include "apps/options.h"

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace reknit {

/// A subcommand whose flags have been declared: called after a successful parse.
using Action = std::function<int()>;

/// --config, --set, --ranks, --nodes, --device, --dtype, --batch, --seed,
/// --deterministic, --timeout, --trace, --share-gpus.
void add_run_flags(CLI::App& app, RunOptions& options);

/// The above, and --steps, --num-train-epochs, --out, --overwrite, --save-interval,
/// --sync-save, --keep, --resume, --time-limit, --log-interval, --compat, --tensorboard, --wandb.
void add_train_flags(CLI::App& app, TrainOptions& options);

/// Files that flags name exist (InputError), the run folder is free or to be resumed
/// (UsageError); then fills `options.place`.
void finish_run(RunOptions& options);
void finish_train(TrainOptions& options);

/// Throws InputError naming flag and path unless a file can be read there.
void require_file(const std::string& flag, const std::string& path);
void require_files(const std::string& flag, const std::vector<std::string>& paths);

/// The model folder for a path or a name in the local cache; empty stays empty. Throws
/// InputError naming flag and path.
std::string require_model(const std::string& flag, const std::string& path);

/// The config.json of the folder that require_model finds, or the file that `path` is itself.
std::string require_model_config(const std::string& flag, const std::string& path);

/// Of "fp32", "bf16" or "fp16", which the flag has been checked to be.
Precision precision_named(const std::string& name);

/// The seed of the random streams, as a checked flag.
void add_seed_flag(CLI::App& app, int64_t& seed);

}  // namespace reknit
