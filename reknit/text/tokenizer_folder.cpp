// The files beside a tokenizer: special tokens, chat template, model type.
#include "reknit/text/tokenizer_folder.h"

#include <algorithm>
#include <charconv>

#include "reknit/base/error.h"
#include "reknit/text/json_reader.h"

namespace reknit {
namespace {

using nlohmann::json;

// The parsed file, or an empty object where there is none.
json read_object(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    return json::object();
  }
  const TokenizerJsonReader in(path.string());
  json value = in.parse(read_text_file(path));
  in.object(value, "the file");
  return value;
}

// A special token is written as its text or as an object with the flags.
AddedToken special_token(const TokenizerJsonReader& in, const json& value,
                         const std::string& what) {
  AddedToken token;
  if (value.is_object()) {
    token = in.added_token(value);
  } else {
    token.content = in.text(value, what);
  }
  token.special = true;
  return token;
}

void add_special(FolderSettings& settings, const AddedToken& token) {
  const bool known =
      std::any_of(settings.special_tokens.begin(), settings.special_tokens.end(),
                  [&](const AddedToken& other) { return other.content == token.content; });
  if (!known && !token.content.empty()) {
    settings.special_tokens.push_back(token);
  }
}

void read_special_tokens(const TokenizerJsonReader& in, const json& file,
                         FolderSettings& settings) {
  const std::pair<const char*, std::string*> named[] = {{"bos_token", &settings.special.bos},
                                                        {"eos_token", &settings.special.eos},
                                                        {"unk_token", &settings.special.unk},
                                                        {"pad_token", &settings.special.pad}};
  for (const auto& [key, name] : named) {
    if (const json* value = in.optional(file, key); value && name->empty()) {
      const AddedToken token = special_token(in, *value, key);
      *name = token.content;
      add_special(settings, token);
    }
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const json* list = in.optional(file, key);
    if (list != nullptr && !list->is_array() && !list->is_object()) {
      in.fail(str("'", key, "' is neither a list nor an object"));
    }
    for (const json& value : list ? *list : json::array()) {
      add_special(settings, special_token(in, value, key));
    }
  }
}

int64_t parse_id(const TokenizerJsonReader& in, const std::string& text) {
  int64_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0 || id >= kIdLimit) {
    in.fail(str("added_tokens_decoder has the key '", text, "', which is no id"));
  }
  return id;
}

void read_chat_template(const TokenizerJsonReader& in, const json& file, FolderSettings& settings) {
  const json* value = in.optional(file, "chat_template");
  if (value == nullptr) {
    return;
  }
  if (!value->is_array()) {
    settings.chat_template = in.text(*value, "chat_template");
    return;
  }
  for (const json& entry : *value) {
    in.object(entry, "an entry of chat_template");
    if (in.text(in.member(entry, "name", "an entry of chat_template"), "its name") == "default") {
      settings.chat_template =
          in.text(in.member(entry, "template", "an entry of chat_template"), "its template");
    }
  }
}

std::optional<bool> optional_flag(const TokenizerJsonReader& in, const json& file,
                                  const char* key) {
  if (in.optional(file, key) == nullptr) {
    return std::nullopt;
  }
  return in.flag(file, key, false);
}

void read_tokenizer_config(const std::filesystem::path& path, FolderSettings& settings) {
  const TokenizerJsonReader in(path.string());
  const json file = read_object(path);
  read_special_tokens(in, file, settings);
  read_chat_template(in, file, settings);
  settings.add_bos_token = optional_flag(in, file, "add_bos_token");
  settings.add_prefix_space = optional_flag(in, file, "add_prefix_space");
  if (const json* decoder = in.optional(file, "added_tokens_decoder")) {
    for (const auto& [id, entry] : in.object(*decoder, "added_tokens_decoder").items()) {
      AddedToken token = in.added_token(in.object(entry, "an added token"));
      token.id = parse_id(in, id);
      settings.added.push_back(std::move(token));
    }
  }
}

void read_added_tokens_json(const std::filesystem::path& path, FolderSettings& settings) {
  const TokenizerJsonReader in(path.string());
  const json file = read_object(path);
  for (const auto& [content, id] : file.items()) {
    AddedToken token;
    token.content = content;
    token.id = in.id(id, str("the added token '", content, "'"));
    settings.added.push_back(std::move(token));
  }
}

// An id, or the first of a list of ids; ids that are no tokens (-1) count as absent.
std::optional<int64_t> config_id(const json& file, const char* key) {
  const auto found = file.find(key);
  if (found == file.end()) {
    return std::nullopt;
  }
  const json& value = found->is_array() && !found->empty() ? found->front() : *found;
  if (!value.is_number_integer() || value < 0 || value >= kIdLimit) {
    return std::nullopt;
  }
  return value.get<int64_t>();
}

}  // namespace

FolderSettings read_folder_settings(const std::filesystem::path& folder) {
  FolderSettings settings;
  read_tokenizer_config(folder / "tokenizer_config.json", settings);
  const std::filesystem::path special_map = folder / "special_tokens_map.json";
  read_special_tokens(TokenizerJsonReader(special_map.string()), read_object(special_map),
                      settings);
  read_added_tokens_json(folder / "added_tokens.json", settings);
  if (std::filesystem::exists(folder / "chat_template.jinja")) {
    settings.chat_template = read_text_file(folder / "chat_template.jinja");
  }
  const std::filesystem::path config_path = folder / "config.json";
  const TokenizerJsonReader in(config_path.string());
  const json config = read_object(config_path);
  if (const json* type = in.optional(config, "model_type")) {
    settings.model_type = in.text(*type, "model_type");
  }
  settings.bos_id = config_id(config, "bos_token_id");
  settings.eos_id = config_id(config, "eos_token_id");
  settings.pad_id = config_id(config, "pad_token_id");
  return settings;
}

}  // namespace reknit
