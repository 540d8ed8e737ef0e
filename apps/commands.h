// The commands. Each takes what the flags filled and returns the exit code; anything
// that is wrong is thrown as one of the types of base/error.h.
#pragma once

#include "apps/options.h"

namespace reknit {

int run_ppo(const PpoOptions& options);
int run_pretrain(const PretrainOptions& options);
int run_generate(const GenerateOptions& options);
int run_score(const ScoreOptions& options);
int run_export(const ExportOptions& options);
int run_init(const InitOptions& options);
int run_data_build(const DataBuildOptions& options);
int run_data_show(const DataShowOptions& options);
int run_check(const CheckOptions& options);
int run_env(const EnvOptions& options);

}  // namespace reknit
