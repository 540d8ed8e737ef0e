// Byte-level BPE tokenizers: text to token ids and back.
#include "reknit/text/tokenizer.h"

#include <algorithm>
#include <array>

#include "reknit/base/error.h"
#include "reknit/text/added_tokens.h"
#include "reknit/text/bpe.h"
#include "reknit/text/byte_level.h"
#include "reknit/text/split.h"
#include "reknit/text/tokenizer_file.h"
#include "reknit/text/tokenizer_folder.h"
#include "reknit/text/utf8.h"

namespace reknit {

namespace fs = std::filesystem;

struct Tokenizer::Data {
  struct Entry {
    std::string token;
    std::string bytes;
    bool present = false;
    bool special = false;
  };

  explicit Data(TokenizerSpec&& spec)
      : bpe(std::move(spec.model)),
        splitter(spec.splits),
        add_prefix_space(spec.add_prefix_space),
        prefix(std::move(spec.prefix)),
        suffix(std::move(spec.suffix)) {}

  void encode_text(std::string_view text, WordCache& cache, std::vector<int64_t>& ids) const {
    std::string prefixed;
    if (add_prefix_space && !text.starts_with(' ')) {
      prefixed = str(' ', text);
      text = prefixed;
    }
    for (const std::string_view piece : splitter.split(text)) {
      bpe.encode(piece, cache, ids);
    }
  }

  const Entry* entry(int64_t id) const {
    const bool inside = id >= 0 && id < static_cast<int64_t>(entries.size());
    return inside && entries[id].present ? &entries[id] : nullptr;
  }

  Bpe bpe;
  mutable WordCachePool caches;
  Splitter splitter;
  bool add_prefix_space;
  std::vector<int64_t> prefix;
  std::vector<int64_t> suffix;
  AddedTokens added;
  std::vector<Entry> entries;  ///< by id
  std::optional<int64_t> bos, eos, pad, unk;
  std::string chat_template;
};

namespace {

constexpr const char* kHelp = "pass --tokenizer, or copy tokenizer.json from the base model";

// Special tokens that the settings name, and tokens they add, become added tokens.
void apply_settings(const FolderSettings& settings, const std::string& name, TokenizerSpec& spec) {
  const auto is_added = [&spec](const std::string& content) {
    return std::any_of(spec.added.begin(), spec.added.end(),
                       [&](const AddedToken& token) { return token.content == content; });
  };
  for (const AddedToken& token : settings.added) {
    if (!is_added(token.content) && !token.content.empty()) {
      spec.added.push_back(token);
    }
  }
  check_ids(spec, name);
  for (AddedToken token : settings.special_tokens) {
    if (!is_added(token.content)) {
      const int64_t known = find_id(spec, token.content);
      token.id = known >= 0 ? known : id_bound(spec);
      spec.added.push_back(std::move(token));
    }
  }
}

// The rules of the model type where the files are silent.
void apply_rules(const ModelTypeRules& rules, const std::string& folder, FolderSettings& settings,
                 TokenizerSpec& spec) {
  const std::array<std::pair<std::string*, const std::string*>, 4> names = {
      {{&settings.special.bos, &rules.special.bos},
       {&settings.special.eos, &rules.special.eos},
       {&settings.special.pad, &rules.special.pad},
       {&settings.special.unk, &rules.special.unk}}};
  for (const auto& [stated, rule] : names) {
    if (stated->empty() && !rule->empty() && find_id(spec, *rule) >= 0) {
      *stated = *rule;
      settings.special_tokens.push_back({-1, *rule, true});
    }
  }
  spec.splits.push_back({rules.pattern, false, false, false});
  spec.add_prefix_space = settings.add_prefix_space.value_or(false);
  if (settings.add_bos_token.value_or(rules.starts_with_bos)) {
    const int64_t bos = find_id(spec, settings.special.bos);
    if (settings.special.bos.empty() || bos < 0) {
      throw InputError(str(folder, ": texts of this model type begin with a start token, but '",
                           settings.special.bos.empty() ? rules.special.bos : settings.special.bos,
                           "' is not in vocab.json"),
                       kHelp);
    }
    spec.prefix = {bos};
  }
}

std::optional<int64_t> special_id(const TokenizerSpec& spec, const std::string& name,
                                  std::optional<int64_t> config_id) {
  if (!name.empty()) {
    return find_id(spec, name);
  }
  return config_id;
}

}  // namespace

std::shared_ptr<Tokenizer::Data> Tokenizer::build(TokenizerSpec spec, const std::string& name) {
  check_ids(spec, name);
  std::vector<Data::Entry> entries(id_bound(spec));
  for (const auto& [token, id] : spec.model.vocabulary) {
    entries[id] = {token, from_byte_letters(token).value_or(token), true, false};
  }
  AddedTokens added;
  for (const AddedToken& token : spec.added) {
    const std::string bytes = from_byte_letters(token.content).value_or(token.content);
    entries[token.id] = {token.content, bytes, true, token.special};
    added.add(token);
  }
  for (const std::vector<int64_t>* ids : {&spec.prefix, &spec.suffix}) {
    for (const int64_t id : *ids) {
      if (id >= static_cast<int64_t>(entries.size()) || !entries[id].present) {
        throw InputError(
            str(name, ": the template puts the id ", id, " around a text, which is no token"));
      }
    }
  }
  auto data = std::make_shared<Data>(std::move(spec));
  data->added = std::move(added);
  data->entries = std::move(entries);
  return data;
}

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json, const std::string& name) {
  return Tokenizer(build(parse_tokenizer_json(tokenizer_json, name), name));
}

Tokenizer Tokenizer::load(const fs::path& folder) {
  const fs::path file = folder / "tokenizer.json";
  const bool whole = fs::exists(file);
  if (!whole && !(fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt"))) {
    throw InputError(str(folder.string(),
                         " holds no tokenizer: neither tokenizer.json nor "
                         "vocab.json with merges.txt"),
                     kHelp);
  }
  const std::string name = whole ? file.string() : folder.string();
  FolderSettings settings = read_folder_settings(folder);
  TokenizerSpec spec;
  if (whole) {
    spec = parse_tokenizer_json(read_text_file(file), name);
    const bool plain = spec.splits.size() == 1 && spec.splits[0].pattern == kGpt2Pattern;
    if (plain && settings.add_prefix_space) {
      spec.add_prefix_space = *settings.add_prefix_space;
    }
    apply_settings(settings, name, spec);
  } else {
    spec = parse_vocab_and_merges(read_text_file(folder / "vocab.json"),
                                  read_text_file(folder / "merges.txt"), name);
    apply_rules(model_type_rules(settings.model_type, name), name, settings, spec);
    apply_settings(settings, name, spec);
  }
  const auto bos = special_id(spec, settings.special.bos, settings.bos_id);
  const auto eos = special_id(spec, settings.special.eos, settings.eos_id);
  const auto pad = special_id(spec, settings.special.pad, settings.pad_id);
  const auto unk = special_id(spec, settings.special.unk, std::nullopt);
  std::shared_ptr<Data> data = build(std::move(spec), name);
  const auto known = [&](std::optional<int64_t> id) {
    return id && data->entry(*id) ? id : std::nullopt;
  };
  data->bos = known(bos);
  data->eos = known(eos);
  data->pad = known(pad);
  data->unk = known(unk);
  data->chat_template = settings.chat_template;
  return Tokenizer(std::move(data));
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (const size_t bad = first_invalid_utf8(text); bad != std::string_view::npos) {
    throw InputError(str("the text is not UTF-8 at byte ", bad, " of ", text.size()));
  }
  std::vector<int64_t> ids;
  if (add_special_tokens) {
    ids = data_->prefix;
  }
  const WordCachePool::Loan cache(data_->caches);
  for (const TextPiece& piece : data_->added.split(text)) {
    if (piece.id >= 0) {
      ids.push_back(piece.id);
    } else {
      data_->encode_text(piece.text, *cache, ids);
    }
  }
  if (add_special_tokens) {
    ids.insert(ids.end(), data_->suffix.begin(), data_->suffix.end());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special) const {
  std::string text;
  for (const int64_t id : ids) {
    if (!(skip_special && is_special(id))) {
      text += bytes(id);
    }
  }
  return utf8_lossy(text);
}

std::string_view Tokenizer::bytes(int64_t id) const {
  const Data::Entry* entry = data_->entry(id);
  return entry ? std::string_view(entry->bytes) : std::string_view();
}

std::string_view Tokenizer::token(int64_t id) const {
  const Data::Entry* entry = data_->entry(id);
  return entry ? std::string_view(entry->token) : std::string_view();
}

std::optional<int64_t> Tokenizer::id(const std::string& token) const {
  if (const AddedToken* added = data_->added.find(token)) {
    return added->id;
  }
  const auto found = data_->bpe.vocabulary().find(token);
  return found == data_->bpe.vocabulary().end() ? std::nullopt : std::optional(found->second);
}

bool Tokenizer::is_special(int64_t id) const {
  const Data::Entry* entry = data_->entry(id);
  return entry && entry->special;
}

std::optional<int64_t> Tokenizer::bos() const {
  return data_->bos;
}
std::optional<int64_t> Tokenizer::eos() const {
  return data_->eos;
}
std::optional<int64_t> Tokenizer::pad() const {
  return data_->pad;
}
std::optional<int64_t> Tokenizer::unk() const {
  return data_->unk;
}

int64_t Tokenizer::vocabulary_size() const {
  return static_cast<int64_t>(data_->entries.size());
}

const std::string& Tokenizer::chat_template() const {
  return data_->chat_template;
}

std::optional<int64_t> Tokenizer::first_difference(const Tokenizer& other) const {
  const int64_t count = std::max(vocabulary_size(), other.vocabulary_size());
  for (int64_t id = 0; id < count; ++id) {
    if (token(id) != other.token(id)) {
      return id;
    }
  }
  return std::nullopt;
}

std::string StreamDecoder::add(int64_t id) {
  if (skip_special_ && tokenizer_.is_special(id)) {
    return "";
  }
  pending_ += tokenizer_.bytes(id);
  const size_t settled = utf8_settled(pending_);
  std::string text = utf8_lossy(std::string_view(pending_).substr(0, settled));
  pending_.erase(0, settled);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = utf8_lossy(pending_);
  pending_.clear();
  return text;
}

std::vector<fs::path> tokenizer_files(const fs::path& folder) {
  constexpr std::array kNames = {"tokenizer.json",
                                 "tokenizer_config.json",
                                 "special_tokens_map.json",
                                 "added_tokens.json",
                                 "vocab.json",
                                 "merges.txt",
                                 "tokenizer.model",
                                 "vocab.txt",
                                 "spiece.model",
                                 "sentencepiece.bpe.model",
                                 "chat_template.jinja",
                                 "chat_template.json"};
  std::vector<fs::path> files;
  for (const char* name : kNames) {
    if (fs::is_regular_file(folder / name)) {
      files.emplace_back(name);
    }
  }
  const fs::path extra = "additional_chat_templates";
  if (fs::is_directory(folder / extra)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder / extra)) {
      files.push_back(extra / entry.path().filename());
    }
    std::sort(files.begin(), files.end());
  }
  return files;
}

}  // namespace reknit
