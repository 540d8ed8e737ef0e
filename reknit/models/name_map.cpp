#include "reknit/models/name_map.h"

#include "reknit/base/error.h"
#include "reknit/models/groups.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>

namespace reknit {
namespace {

/// Collects the pieces of one group, whole parameters by default.
class GroupNames {
 public:
  GroupNames(std::vector<NamePiece>& pieces, const std::vector<GroupSpec>& groups, GroupId group)
      : pieces_(pieces), spec_(groups[group]), group_(group) {}

  /// Nothing where the model has no such parameter (param < 0).
  void whole(int param, const std::string& name, bool transposed = false) {
    if (param >= 0) {
      rows(param, name, 0, spec_.params[param].shape[0], transposed);
    }
  }
  void rows(int param, const std::string& name, int64_t begin, int64_t end,
            bool transposed = false) {
    pieces_.push_back({.hf_name = name,
                       .group = group_,
                       .param = param,
                       .row_begin = begin,
                       .row_end = end,
                       .transposed = transposed});
  }
  /// Weight and bias, which follow each other.
  void pair(int weight, const std::string& name, bool transposed = false) {
    if (weight >= 0) {
      whole(weight, name + ".weight", transposed);
      whole(weight + 1, name + ".bias");
    }
  }

 private:
  std::vector<NamePiece>& pieces_;
  const GroupSpec& spec_;
  GroupId group_;
};

/// What differs between the architectures: names, and how qkv is cut.
struct FamilyNames {
  std::string base;  ///< prefix of everything but the heads
  std::string tokens, positions, project_in, embed_norm, block;
  std::string attn_norm, attn_out, mlp_norm, fc1, fc2;
  std::string qkv;  ///< empty: three tensors q_proj, k_proj, v_proj
  std::string final_norm, project_out;
  bool transposed = false;
  std::string causal_class, value_class;
};

const FamilyNames& family(const ModelSpec& spec) {
  static const FamilyNames opt{
      .base = "model.decoder.",
      .tokens = "embed_tokens",
      .positions = "embed_positions",
      .project_in = "project_in",
      .block = "layers.",
      .attn_norm = "self_attn_layer_norm",
      .attn_out = "self_attn.out_proj",
      .mlp_norm = "final_layer_norm",
      .fc1 = "fc1",
      .fc2 = "fc2",
      .final_norm = "final_layer_norm",
      .project_out = "project_out",
      .causal_class = "OPTForCausalLM",
      .value_class = "OPTForSequenceClassification",
  };
  static const FamilyNames bloom{
      .base = "transformer.",
      .tokens = "word_embeddings",
      .embed_norm = "word_embeddings_layernorm",
      .block = "h.",
      .attn_norm = "input_layernorm",
      .attn_out = "self_attention.dense",
      .mlp_norm = "post_attention_layernorm",
      .fc1 = "mlp.dense_h_to_4h",
      .fc2 = "mlp.dense_4h_to_h",
      .qkv = "self_attention.query_key_value",
      .final_norm = "ln_f",
      .causal_class = "BloomForCausalLM",
      .value_class = "BloomForSequenceClassification",
  };
  static const FamilyNames gpt2{
      .base = "transformer.",
      .tokens = "wte",
      .positions = "wpe",
      .block = "h.",
      .attn_norm = "ln_1",
      .attn_out = "attn.c_proj",
      .mlp_norm = "ln_2",
      .fc1 = "mlp.c_fc",
      .fc2 = "mlp.c_proj",
      .qkv = "attn.c_attn",
      .final_norm = "ln_f",
      .transposed = true,
      .causal_class = "GPT2LMHeadModel",
      .value_class = "GPT2ForSequenceClassification",
  };
  if (spec.model_type == "opt") {
    return opt;
  }
  if (spec.model_type == "bloom") {
    return bloom;
  }
  require<InputError>(spec.model_type == "gpt2", "model type \"", spec.model_type,
                      "\" has no names in Hugging Face folders");
  return gpt2;
}

void name_block(GroupNames group, const ModelSpec& spec, const FamilyNames& names,
                const std::string& prefix) {
  group.pair(kAttnNormWeight, prefix + names.attn_norm);
  if (names.qkv.empty()) {
    const int64_t q = spec.heads * spec.head_dim();
    const int64_t kv = spec.kv_heads * spec.head_dim();
    const std::array<int64_t, 4> cuts{0, q, q + kv, q + 2 * kv};
    const std::array<const char*, 3> parts{"q_proj", "k_proj", "v_proj"};
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string name = prefix + "self_attn." + parts[i];
      group.rows(kQkvWeight, name + ".weight", cuts[i], cuts[i + 1]);
      group.rows(kQkvBias, name + ".bias", cuts[i], cuts[i + 1]);
    }
  } else {
    group.pair(kQkvWeight, prefix + names.qkv, names.transposed);
  }
  group.pair(kAttnOutWeight, prefix + names.attn_out, names.transposed);
  group.pair(kMlpNormWeight, prefix + names.mlp_norm);
  group.pair(kFc1Weight, prefix + names.fc1, names.transposed);
  group.pair(kFc2Weight, prefix + names.fc2, names.transposed);
}

constexpr std::array kPrefixes{"module.",        "base_model.",     "model.",
                               "rwtransformer.", "rwtranrsformer.", "transformer."};

/// The name without any of the known prefixes.
std::string stem(std::string name) {
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view prefix : kPrefixes) {
      if (name.starts_with(prefix)) {
        name.erase(0, prefix.size());
        again = true;
      }
    }
  }
  return name;
}

/// Names of a file by stem, with exact names winning over others.
class NameIndex {
 public:
  explicit NameIndex(const std::vector<std::string>& available)
      : exact_(available.begin(), available.end()) {
    for (const std::string& name : available) {
      by_stem_[stem(name)].push_back(name);
    }
  }

  std::string find(const std::string& wanted) const {
    if (exact_.contains(wanted)) {
      return wanted;
    }
    const auto it = by_stem_.find(stem(wanted));
    if (it == by_stem_.end()) {
      return "";
    }
    const std::vector<std::string>& names = it->second;
    require<InputError>(names.size() == 1, "both ", names.front(), " and ", names.back(),
                        " could be ", wanted);
    return names.front();
  }

 private:
  std::unordered_set<std::string> exact_;
  std::unordered_map<std::string, std::vector<std::string>> by_stem_;
};

constexpr const char* kLmHead = "lm_head.weight";
constexpr const char* kScore = "score.weight";
constexpr const char* kValueHead = "v_head.weight";

std::string find_value_head(const NameIndex& index) {
  const std::string name = index.find(kValueHead);
  return name.empty() ? index.find(kScore) : name;
}

}  // namespace

std::vector<int64_t> stored_shape(const ParamSpec& param, const NamePiece& piece) {
  std::vector<int64_t> shape = param.shape;
  shape.at(0) = piece.row_end - piece.row_begin;
  if (piece.transposed) {
    std::swap(shape.at(0), shape.at(1));
  }
  return shape;
}

std::vector<NamePiece> name_map(const ModelSpec& spec) {
  const FamilyNames& names = family(spec);
  const std::vector<GroupSpec> groups = model_groups(spec);
  std::vector<NamePiece> pieces;

  const EmbedParams at_embed = EmbedParams::of(spec);
  GroupNames embed(pieces, groups, embed_group());
  embed.rows(at_embed.tokens, names.base + names.tokens + ".weight", 0, spec.vocab);
  embed.whole(at_embed.positions, names.base + names.positions + ".weight");
  embed.whole(at_embed.project_in, names.base + names.project_in + ".weight");
  embed.pair(at_embed.norm_weight, names.base + names.embed_norm);

  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    name_block(GroupNames(pieces, groups, block_group(layer)), spec, names,
               names.base + names.block + std::to_string(layer) + ".");
  }

  const HeadParams at_head = HeadParams::of(spec);
  GroupNames head(pieces, groups, head_group(spec));
  head.pair(at_head.norm_weight, names.base + names.final_norm);
  head.whole(at_head.project_out, names.base + names.project_out + ".weight");
  head.whole(at_head.value, kScore);
  if (at_head.table >= 0) {
    head.rows(at_head.table, kLmHead, 0, spec.vocab);
  } else if (spec.tied_output()) {
    embed.rows(at_embed.tokens, kLmHead, 0, spec.vocab);
    pieces.back().optional = true;
  }
  return pieces;
}

std::vector<std::string> match_names(const std::vector<NamePiece>& pieces,
                                     const std::vector<std::string>& available) {
  const NameIndex index(available);
  const bool tied = std::any_of(pieces.begin(), pieces.end(),
                                [](const NamePiece& piece) { return piece.optional; });
  std::vector<std::string> found;
  for (const NamePiece& piece : pieces) {
    std::string name = piece.hf_name == kScore ? find_value_head(index) : index.find(piece.hf_name);
    const bool token_table = piece.group == embed_group() && piece.param == 0;
    if (name.empty() && tied && token_table && !piece.optional) {
      name = index.find(kLmHead);
    }
    found.push_back(std::move(name));
  }
  return found;
}

std::string find_value_head(const std::vector<std::string>& available) {
  return find_value_head(NameIndex(available));
}

bool is_buffer_name(const std::string& file_name) {
  for (const char* ending : {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"}) {
    if (file_name.ends_with(ending)) {
      return true;
    }
  }
  return false;
}

std::string hf_architecture(const ModelSpec& spec) {
  const FamilyNames& names = family(spec);
  return spec.value_head ? names.value_class : names.causal_class;
}

InitKind init_kind(const ModelSpec& /*spec*/, const ParamSpec& param) {
  if (param.name.ends_with(".bias")) {
    return InitKind::kZeros;
  }
  return param.name.ends_with("norm.weight") ? InitKind::kOnes : InitKind::kNormal;
}

double init_std(const ModelSpec& spec, const ParamSpec& param) {
  const bool into_residual =
      param.name.ends_with("attn_out.weight") || param.name.ends_with("fc2.weight");
  const bool scaled = spec.model_type == "gpt2" && into_residual;
  return scaled ? spec.init_std / std::sqrt(2.0 * static_cast<double>(spec.layers)) : spec.init_std;
}

}  // namespace reknit
