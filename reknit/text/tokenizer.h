// Byte-level BPE tokenizers: text to token ids and back, as the Python package
// `tokenizers` does it for the files of OPT, GPT-2, BLOOM and their like.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reknit {

struct TokenizerSpec;

/// A loaded tokenizer: a cheap handle on immutable data. Thread-safe, host only.
///
/// Ids are int64_t, as tensors of ids hold them. encode() neither truncates nor
/// pads, whatever the file's `truncation` and `padding` say.
class Tokenizer {
 public:
  /// Reads a folder: tokenizer.json, else vocab.json + merges.txt by the rules of
  /// config.json's model_type (opt, gpt2, gpt_neo, bloom). tokenizer_config.json,
  /// special_tokens_map.json, added_tokens.json and chat_template.jinja are
  /// honoured. Throws InputError: nothing there (help: what to pass or copy), damage,
  /// or a component that is not supported, by its type's name.
  static Tokenizer load(const std::filesystem::path& folder);

  /// The same from the text of a tokenizer.json alone; `name` is used in errors.
  static Tokenizer from_json(std::string_view tokenizer_json, const std::string& name);

  /// Ids of `text`, with the file's template (a start token, say) around it if
  /// `add_special_tokens`. Throws InputError if `text` is not UTF-8.
  std::vector<int64_t> encode(std::string_view text, bool add_special_tokens = true) const;

  /// The text of `ids`; `skip_special` leaves special tokens out. Bytes that are not
  /// UTF-8 become U+FFFD; ids that are no tokens (padded vocabularies have them) are
  /// left out. As in the Python package, an added token all of whose letters are in
  /// the byte-level alphabet stands for those bytes (ASCII is unchanged by that).
  std::string decode(std::span<const int64_t> ids, bool skip_special = false) const;

  /// The bytes that `id` adds to a text; empty if it is no token. Valid as long as a
  /// copy of this tokenizer lives; so are the other views.
  std::string_view bytes(int64_t id) const;

  /// The token as the vocabulary writes it; empty if `id` is no token.
  std::string_view token(int64_t id) const;

  /// The id of a token as the vocabulary writes it.
  std::optional<int64_t> id(const std::string& token) const;

  bool is_special(int64_t id) const;

  /// Special tokens, where the files name one. An id may lie above the model's
  /// vocabulary if the files add a token that the model lacks.
  std::optional<int64_t> bos() const;
  std::optional<int64_t> eos() const;
  std::optional<int64_t> pad() const;
  std::optional<int64_t> unk() const;

  /// One more than the largest id: the least vocabulary that a model must have.
  int64_t vocabulary_size() const;

  /// The Jinja text of the chat template; empty if there is none.
  const std::string& chat_template() const;

  /// The first id that stands for different tokens here and in `other`, ids that
  /// only one of them has included; nothing if all agree.
  std::optional<int64_t> first_difference(const Tokenizer& other) const;

 private:
  struct Data;
  explicit Tokenizer(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  static std::shared_ptr<Data> build(TokenizerSpec spec, const std::string& name);

  std::shared_ptr<const Data> data_;
};

/// Decodes a growing sequence: text comes out as soon as later ids cannot change it.
/// All parts together are what decode() gives.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special = false)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  /// What `id` completes; may be empty.
  std::string add(int64_t id);

  /// What is left at the end of the sequence; starts afresh.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  std::string pending_;
};

/// The tokenizer files that lie in `folder`, chat templates included: what an export
/// has to copy. Paths are relative to `folder`.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& folder);

}  // namespace reknit
