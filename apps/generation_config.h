// What a model's folder says of sampling: generation_config.json.
#pragma once

#include "apps/options.h"

#include <set>
#include <string>
#include <vector>

namespace reknit {

/// Fills `sampling` as generate() of transformers, and so DeepSpeed-Chat, takes it from the model's
/// folder: generation_config.json, or config.json where there is none; greedy unless `do_sample`
/// is true, and then top_k 50 unless the file says another. `flags` are those of --temperature,
/// --top-k and --top-p that were given: they fill gaps. UsageError with both values if one
/// contradicts the file; InputError if the file asks for what is not built. Returns what to say.
std::vector<std::string> sample_as_configured(const std::string& model_dir,
                                              const std::set<std::string>& flags,
                                              SamplingOptions& sampling);

/// What a command without the above has to say of a folder that asks for sampling; may be empty.
std::string unused_sampling(const std::string& model_dir);

}  // namespace reknit
