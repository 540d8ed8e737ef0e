// The flags of reknit plan.
#pragma once

#include "apps/options.h"
#include "apps/shared_flags.h"
#include "reknit/engine/plan.h"

#include <functional>

namespace reknit {

struct PlanOptions {
  RunOptions run;      ///< config, sets, dtype, batch; the place is what is planned for
  std::string model;   ///< a folder or a config.json
  std::string critic;  ///< empty: the model with a value head
  std::string phase = "pretrain";
  int64_t ranks = 1;
  int64_t nodes = 1;
  std::string gpu;    ///< empty: h100-80g
  Hardware hardware;  ///< as resolved
  std::optional<int64_t> sequence;
  int64_t max_prompt_len = 256;
  int64_t max_answer_len = 256;
  std::optional<int64_t> generation_batch;
  bool recompute = false;
  bool sweep = false;
  bool json = false;
  ModelSettings settings;
};

int run_plan(const PlanOptions& options);
Action add_plan(CLI::App& app, std::function<int(const PlanOptions&)> run);

/// "80GB" (10^9), "80GiB" (2^30), "400GB/s" where `per_second`, or plain bytes. UsageError
/// naming `flag` for anything else.
double parse_bytes(const std::string& flag, const std::string& text, bool per_second);

}  // namespace reknit
