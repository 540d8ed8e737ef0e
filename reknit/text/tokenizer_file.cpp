// What a tokenizer's files state, read and checked but not yet built.
#include "reknit/text/tokenizer_file.h"

#include <algorithm>
#include <fstream>

#include "reknit/base/error.h"
#include "reknit/text/json_reader.h"

namespace reknit {
namespace {

using nlohmann::json;

void read_vocabulary(const TokenizerJsonReader& in, const json& vocabulary, BpeSpec& model) {
  in.object(vocabulary, "the vocabulary");
  if (vocabulary.empty()) {
    in.fail("the vocabulary is empty");
  }
  std::vector<bool> seen;
  for (const auto& [token, value] : vocabulary.items()) {
    const int64_t id = in.id(value, str("the token '", token, "'"));
    if (id >= static_cast<int64_t>(seen.size())) {
      seen.resize(id + 1);
    }
    if (seen[id]) {
      in.fail(str("two tokens have the id ", id, ", one of them '", token, "'"));
    }
    seen[id] = true;
    model.vocabulary.emplace(token, id);
  }
}

void add_merge(const TokenizerJsonReader& in, const std::string& line, size_t rank,
               BpeSpec& model) {
  if (line.starts_with("#version")) {
    return;
  }
  const size_t space = line.find(' ');
  if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
    in.fail(str("merge ", rank, " is '", line, "', not two tokens and a space between"));
  }
  model.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
}

void read_merges(const TokenizerJsonReader& in, const json& merges, BpeSpec& model) {
  if (!merges.is_array()) {
    in.fail(str("the merges are a JSON ", merges.type_name(), ", not a list"));
  }
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const json& merge = merges[rank];
    if (merge.is_string()) {
      add_merge(in, merge.get<std::string>(), rank, model);
    } else if (merge.is_array() && merge.size() == 2) {
      const std::string what = str("merge ", rank);
      model.merges.emplace_back(in.text(merge[0], what), in.text(merge[1], what));
    } else {
      in.fail(str("merge ", rank, " is neither a string nor a pair"));
    }
  }
}

void read_model(const TokenizerJsonReader& in, const json& model, BpeSpec& spec) {
  in.object(model, "the model");
  if (model.contains("type") && in.type(model, "model") != "BPE") {
    in.unsupported("model", in.type(model, "model"));
  }
  if (const json* dropout = in.optional(model, "dropout"); dropout && *dropout != 0) {
    in.fail(str("the model's dropout ", dropout->dump(), " is not supported"));
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const json* affix = in.optional(model, key); affix && *affix != "") {
      in.fail(str("the model's ", key, " ", affix->dump(), " is not supported"));
    }
  }
  if (in.flag(model, "byte_fallback", false)) {
    in.fail("the model's byte_fallback is not supported");
  }
  if (const json* unknown = in.optional(model, "unk_token")) {
    spec.unknown = in.text(*unknown, "unk_token");
  }
  spec.fuse_unknown = in.flag(model, "fuse_unk", false);
  spec.ignore_merges = in.flag(model, "ignore_merges", false);
  read_vocabulary(in, in.member(model, "vocab", "the model"), spec);
  read_merges(in, in.member(model, "merges", "the model"), spec);
}

void read_split(const TokenizerJsonReader& in, const json& component, TokenizerSpec& spec) {
  const json& pattern = in.object(in.member(component, "pattern", "Split"), "the pattern");
  SplitSpec split;
  split.literal = pattern.contains("String");
  split.pattern =
      in.text(in.member(pattern, split.literal ? "String" : "Regex", "the pattern"), "the pattern");
  if (split.pattern.empty()) {
    in.fail("a Split has an empty pattern");
  }
  const std::string behavior = in.text(in.member(component, "behavior", "Split"), "behavior");
  split.removed = behavior == "Removed";
  if (!split.removed && behavior != "Isolated") {
    in.unsupported("behavior of Split", behavior);
  }
  split.invert = in.flag(component, "invert", false);
  spec.splits.push_back(std::move(split));
}

void read_pre_tokenizer(const TokenizerJsonReader& in, const json* component, TokenizerSpec& spec) {
  if (component == nullptr) {
    in.unsupported("pre_tokenizer", "null");
  }
  std::vector<json> parts = {*component};
  if (in.type(*component, "pre_tokenizer") == "Sequence") {
    const json& list = in.member(*component, "pretokenizers", "the pre_tokenizer Sequence");
    if (!list.is_array()) {
      in.fail("the pre_tokenizer Sequence is no list");
    }
    parts.assign(list.begin(), list.end());
  }
  bool byte_level = false;
  for (const json& part : parts) {
    const std::string type = in.type(part, "pre_tokenizer");
    if (byte_level) {
      in.unsupported("pre_tokenizer after ByteLevel", type);
    }
    if (type == "Split") {
      read_split(in, part, spec);
    } else if (type == "ByteLevel") {
      byte_level = true;
      spec.add_prefix_space = in.flag(part, "add_prefix_space", true);
      if (spec.add_prefix_space && !spec.splits.empty()) {
        in.unsupported("pre_tokenizer after Split", "ByteLevel with add_prefix_space");
      }
      if (in.flag(part, "use_regex", true)) {
        spec.splits.push_back({kGpt2Pattern, false, false, false});
      }
    } else {
      in.unsupported("pre_tokenizer", type);
    }
  }
  if (!byte_level) {
    in.unsupported("pre_tokenizer without", "ByteLevel");
  }
}

void read_template(const TokenizerJsonReader& in, const json& component, TokenizerSpec& spec) {
  const json& items = in.member(component, "single", "TemplateProcessing");
  const json* ids = in.optional(component, "special_tokens");
  if (!items.is_array()) {
    in.fail("TemplateProcessing's 'single' is no list");
  }
  std::vector<int64_t> before;
  std::vector<int64_t> after;
  bool text_seen = false;
  for (const json& item : items) {
    in.object(item, "an item of TemplateProcessing");
    if (const json* sequence = in.optional(item, "Sequence")) {
      if (text_seen || in.object(*sequence, "Sequence").value("id", json()) != "A") {
        in.fail("TemplateProcessing's 'single' does not hold the text exactly once");
      }
      text_seen = true;
      continue;
    }
    const json& special =
        in.object(in.member(item, "SpecialToken", "an item of TemplateProcessing"), "SpecialToken");
    const std::string token = in.text(in.member(special, "id", "SpecialToken"), "SpecialToken");
    const json* entry = ids && ids->is_object() ? in.optional(*ids, token.c_str()) : nullptr;
    if (entry == nullptr) {
      in.fail(str("TemplateProcessing gives no ids for '", token, "'"));
    }
    const json& list = in.member(in.object(*entry, token), "ids", token);
    if (!list.is_array()) {
      in.fail(str("TemplateProcessing's ids of '", token, "' are no list"));
    }
    for (const json& id : list) {
      (text_seen ? after : before).push_back(in.id(id, str("the token '", token, "'")));
    }
  }
  if (!text_seen) {
    in.fail("TemplateProcessing's 'single' does not hold the text exactly once");
  }
  spec.prefix.insert(spec.prefix.begin(), before.begin(), before.end());
  spec.suffix.insert(spec.suffix.end(), after.begin(), after.end());
}

void read_post_processor(const TokenizerJsonReader& in, const json* component,
                         TokenizerSpec& spec) {
  if (component == nullptr) {
    return;
  }
  std::vector<json> parts = {*component};
  if (in.type(*component, "post_processor") == "Sequence") {
    const json& list = in.member(*component, "processors", "the post_processor Sequence");
    if (!list.is_array()) {
      in.fail("the post_processor Sequence is no list");
    }
    parts.assign(list.begin(), list.end());
  }
  for (const json& part : parts) {
    const std::string type = in.type(part, "post_processor");
    if (type == "TemplateProcessing") {
      read_template(in, part, spec);
    } else if (type != "ByteLevel") {  // which moves offsets only
      in.unsupported("post_processor", type);
    }
  }
}

void read_added_tokens(const TokenizerJsonReader& in, const json* list, TokenizerSpec& spec) {
  if (list == nullptr) {
    return;
  }
  if (!list->is_array()) {
    in.fail("added_tokens is no list");
  }
  for (const json& entry : *list) {
    in.object(entry, "an added token");
    AddedToken token = in.added_token(entry);
    token.id = in.id(in.member(entry, "id", "an added token"),
                     str("the added token '", token.content, "'"));
    if (!token.content.empty()) {
      spec.added.push_back(std::move(token));
    }
  }
}

}  // namespace

TokenizerSpec parse_tokenizer_json(std::string_view text, const std::string& name) {
  const TokenizerJsonReader in(name);
  const json root = in.parse(text);
  in.object(root, "the file");
  TokenizerSpec spec;
  if (const json* normalizer = in.optional(root, "normalizer")) {
    in.unsupported("normalizer", in.type(*normalizer, "normalizer"));
  }
  const json* decoder = in.optional(root, "decoder");
  const std::string decodes = decoder ? in.type(*decoder, "decoder") : "null";
  if (decodes != "ByteLevel") {
    in.unsupported("decoder", decodes);
  }
  read_pre_tokenizer(in, in.optional(root, "pre_tokenizer"), spec);
  read_model(in, in.member(root, "model", "the file"), spec.model);
  read_post_processor(in, in.optional(root, "post_processor"), spec);
  read_added_tokens(in, in.optional(root, "added_tokens"), spec);
  return spec;
}

TokenizerSpec parse_vocab_and_merges(std::string_view vocab, std::string_view merges,
                                     const std::string& folder) {
  TokenizerSpec spec;
  const TokenizerJsonReader vocab_reader(folder + "/vocab.json");
  read_vocabulary(vocab_reader, vocab_reader.parse(vocab), spec.model);
  const TokenizerJsonReader merges_reader(folder + "/merges.txt");
  for (size_t position = 0, rank = 0; position < merges.size(); ++rank) {
    const size_t end = std::min(merges.find('\n', position), merges.size());
    std::string line(merges.substr(position, end - position));
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (!line.empty()) {
      add_merge(merges_reader, line, rank, spec.model);
    }
    position = end + 1;
  }
  return spec;
}

ModelTypeRules model_type_rules(const std::string& model_type, const std::string& folder) {
  if (model_type == "opt") {
    return {kGpt2Pattern, {"</s>", "</s>", "<pad>", "</s>"}, true};
  }
  if (model_type == "gpt2" || model_type == "gpt_neo") {
    return {kGpt2Pattern, {"<|endoftext|>", "<|endoftext|>", "", "<|endoftext|>"}, false};
  }
  if (model_type == "bloom") {
    return {R"( ?[^(\s|[.,!?…。，、।۔،])]+)", {"<s>", "</s>", "<pad>", "<unk>"}, false};
  }
  throw InputError(str(folder,
                       " holds vocab.json and merges.txt, but the split rule of the model "
                       "type '",
                       model_type, "' is not known"),
                   "copy tokenizer.json from the base model, or name the model_type opt, gpt2, "
                   "gpt_neo or bloom in config.json");
}

void check_ids(const TokenizerSpec& spec, const std::string& name) {
  const TokenizerJsonReader in(name);
  std::map<int64_t, std::string> owners;
  for (const auto& [token, id] : spec.model.vocabulary) {
    owners.emplace(id, token);
  }
  for (const AddedToken& added : spec.added) {
    const auto known = spec.model.vocabulary.find(added.content);
    if (known != spec.model.vocabulary.end() && known->second != added.id) {
      in.fail(str("the added token '", added.content, "' has the id ", added.id,
                  " and, in the vocabulary, ", known->second));
    }
    const auto owner = owners.emplace(added.id, added.content).first;
    if (owner->second != added.content) {
      in.fail(str("the id ", added.id, " belongs to '", owner->second, "' and to the added token '",
                  added.content, "'"));
    }
  }
}

int64_t find_id(const TokenizerSpec& spec, const std::string& token) {
  for (const AddedToken& added : spec.added) {
    if (added.content == token) {
      return added.id;
    }
  }
  const auto found = spec.model.vocabulary.find(token);
  return found == spec.model.vocabulary.end() ? -1 : found->second;
}

int64_t id_bound(const TokenizerSpec& spec) {
  int64_t bound = 0;
  for (const auto& [token, id] : spec.model.vocabulary) {
    bound = std::max(bound, id + 1);
  }
  for (const AddedToken& token : spec.added) {
    bound = std::max(bound, token.id + 1);
  }
  return bound;
}

std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!std::filesystem::is_regular_file(path) || !file) {
    throw InputError(str("cannot read ", path.string()));
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace reknit
