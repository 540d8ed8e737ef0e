// The files beside a tokenizer: special tokens, chat template, model type.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reknit/text/added_tokens.h"
#include "reknit/text/tokenizer_file.h"

namespace reknit {

/// What tokenizer_config.json, special_tokens_map.json, added_tokens.json,
/// chat_template.jinja and config.json state; what they do not is empty.
struct FolderSettings {
  SpecialNames special;
  std::vector<AddedToken> special_tokens;  ///< every token named special; ids unset
  std::vector<AddedToken> added;           ///< with ids
  std::optional<bool> add_bos_token;
  std::optional<bool> add_prefix_space;
  std::string model_type;
  std::string chat_template;
  std::optional<int64_t> bos_id;  ///< config.json's ids
  std::optional<int64_t> eos_id;
  std::optional<int64_t> pad_id;
};

/// Absent files are fine; damaged ones throw InputError.
FolderSettings read_folder_settings(const std::filesystem::path& folder);

}  // namespace reknit
