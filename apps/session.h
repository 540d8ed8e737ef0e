// From the options of a command to the settings of the library.
#pragma once

#include "apps/options.h"
#include "reknit/data/rows.h"
#include "reknit/engine/hybrid.h"
#include "reknit/engine/model.h"
#include "reknit/engine/runtime.h"
#include "reknit/engine/trainer.h"
#include "reknit/text/tokenizer.h"

#include <optional>
#include <string>
#include <vector>

namespace reknit {

RankPlan rank_plan(const RunOptions& options);

StoreSettings store_settings(const std::string& name, const ModelSettings& settings,
                             const RankEnvironment& environment, bool training);
/// Rate, optimizer, clipping and loss scale are the config's, `schedule` is used as it is.
TrainerSettings trainer_settings(const std::string& name, const ModelSettings& settings,
                                 const Schedule& schedule);
/// The config's scheduler; kConstant without one.
Schedule configured_schedule(const ModelSettings& settings, int64_t total_updates);
HybridSettings hybrid_settings(const ModelSettings& settings);

/// A folder's model: its spec with `value_head` as found or as asked for.
ModelSpec model_spec(const HfFolder& folder, bool value_head);
bool has_value_head(const HfFolder& folder);

/// The tokenizer of `tokenizer_dir`, else of the model's folder; nothing where the rows
/// are tokens and neither has one.
std::optional<Tokenizer> find_tokenizer(const std::string& tokenizer_dir,
                                        const std::string& model_dir);

/// Token ids of a field. InputError at the row's place if it needs a tokenizer that is not
/// there, or holds a conversation.
std::vector<int64_t> field_tokens(const Row& row, const Field& field,
                                  const std::optional<Tokenizer>& tokenizer);

/// Of the row's prompt: the first of prompt, text, tokens and messages that it has.
/// InputError at the row's place if it has none, and as field_tokens.
std::vector<int64_t> prompt_tokens(const Row& row, const std::optional<Tokenizer>& tokenizer);

/// Of answers by the folder's model. They end with the end token of its generation_config.json (of
/// several the first), else config.json's, else the tokenizer's.
SamplingSettings sampling_settings(const SamplingOptions& options, int64_t max_new_tokens,
                                   int64_t seed, const HfFolder& folder,
                                   const std::optional<Tokenizer>& tokenizer);

/// To standard output, at once. A reader that has gone away is no error; WriteError otherwise.
void print_result(const std::string& text);
/// To `path`, aside and renamed (see AtomicFile), or to standard output if it is empty.
void write_result(const std::string& path, const std::string& text);

}  // namespace reknit
