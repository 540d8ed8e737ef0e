// What a tokenizer's files state, read and checked but not yet built.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "reknit/text/added_tokens.h"
#include "reknit/text/bpe.h"
#include "reknit/text/split.h"

namespace reknit {

/// A byte-level BPE tokenizer as its files state it.
struct TokenizerSpec {
  BpeSpec model;
  std::vector<SplitSpec> splits;
  bool add_prefix_space = false;
  std::vector<AddedToken> added;
  std::vector<int64_t> prefix;  ///< ids put before a text
  std::vector<int64_t> suffix;  ///< and after it
};

/// Names of special tokens; empty: not stated.
struct SpecialNames {
  std::string bos;
  std::string eos;
  std::string pad;
  std::string unk;
};

/// Reads the text of a tokenizer.json; `name` is the file's name in errors. Throws
/// InputError for damage and for every component that is not supported, by its
/// type's name.
TokenizerSpec parse_tokenizer_json(std::string_view text, const std::string& name);

/// The rules of a model type whose vocabulary lies in vocab.json and merges.txt.
struct ModelTypeRules {
  std::string pattern;
  SpecialNames special;
  bool starts_with_bos = false;
};

/// Throws InputError for a type whose rules are not known.
ModelTypeRules model_type_rules(const std::string& model_type, const std::string& folder);

/// Reads the texts of vocab.json and merges.txt. `add_prefix_space` and special
/// tokens are left to the caller.
TokenizerSpec parse_vocab_and_merges(std::string_view vocab, std::string_view merges,
                                     const std::string& folder);

/// Throws InputError if an id belongs to two tokens or a token has two ids.
void check_ids(const TokenizerSpec& spec, const std::string& name);

/// The id of `token` among the spec's added tokens and vocabulary; -1 if none.
int64_t find_id(const TokenizerSpec& spec, const std::string& token);

/// One more than the largest id.
int64_t id_bound(const TokenizerSpec& spec);

/// The whole file as bytes; throws InputError.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace reknit
