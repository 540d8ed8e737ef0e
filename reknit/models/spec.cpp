#include "reknit/models/spec.h"

#include "reknit/base/error.h"

#include <initializer_list>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using Json = nlohmann::json;
using Names = std::initializer_list<const char*>;

/// config.json by key. A key may have several names; null counts as absent.
class ConfigKeys {
 public:
  explicit ConfigKeys(const Json& config) : config_(config) {}

  const Json* find(Names names) const {
    const Json* found = nullptr;
    const char* found_name = nullptr;
    for (const char* name : names) {
      const auto it = config_.find(name);
      if (it == config_.end() || it->is_null()) {
        continue;
      }
      require<InputError>(found == nullptr || *found == *it, "config.json: ", found_name, " is ",
                          found ? found->dump() : "", " but ", name, " is ", it->dump());
      found = &*it;
      found_name = name;
    }
    return found;
  }

  int64_t integer(Names names, int64_t absent) const {
    const Json* value = find(names);
    require<InputError>(value == nullptr || value->is_number_integer(),
                        "config.json: ", *names.begin(), " must be an integer, not ",
                        value ? value->dump() : "");
    return value == nullptr ? absent : value->get<int64_t>();
  }

  int64_t positive(Names names, int64_t absent) const {
    const int64_t value = integer(names, absent);
    require<InputError>(value > 0, "config.json: ", *names.begin(), " must be positive, not ",
                        value);
    // Products of two sizes stay far within 64 bits.
    require<InputError>(value <= INT32_MAX, "config.json: ", *names.begin(), " must be at most ",
                        INT32_MAX, ", not ", value);
    return value;
  }

  /// Every layer costs memory before the first weight is read.
  int64_t layers(Names names, int64_t absent) const {
    constexpr int64_t kMost = 65536;
    const int64_t value = positive(names, absent);
    require<InputError>(value <= kMost, "config.json: ", *names.begin(), " must be at most ", kMost,
                        ", not ", value);
    return value;
  }

  double number(Names names, double absent) const {
    const Json* value = find(names);
    require<InputError>(value == nullptr || value->is_number(), "config.json: ", *names.begin(),
                        " must be a number, not ", value ? value->dump() : "");
    return value == nullptr ? absent : value->get<double>();
  }

  double dropout(const char* name, double absent) const {
    const double value = number({name}, absent);
    require<InputError>(value >= 0 && value < 1, "config.json: ", name,
                        " must be at least 0 and below 1, not ", value);
    return value;
  }

  bool flag(const char* name, bool absent) const {
    const Json* value = find({name});
    require<InputError>(value == nullptr || value->is_boolean(), "config.json: ", name,
                        " must be true or false, not ", value ? value->dump() : "");
    return value == nullptr ? absent : value->get<bool>();
  }

  std::string text(const char* name, const std::string& absent) const {
    const Json* value = find({name});
    require<InputError>(value == nullptr || value->is_string(), "config.json: ", name,
                        " must be a string, not ", value ? value->dump() : "");
    return value == nullptr ? absent : value->get<std::string>();
  }

  /// A token id; the first of several; -1 where there is none.
  int64_t token(const char* name, int64_t absent) const {
    const auto it = config_.find(name);
    if (it == config_.end()) {
      return absent;
    }
    const Json* value = &*it;
    if (value->is_array() && !value->empty()) {
      value = &value->front();
    }
    if (value->is_null()) {
      return -1;
    }
    require<InputError>(value->is_number_integer(), "config.json: ", name,
                        " must be a token id, not ", value->dump());
    return value->get<int64_t>();
  }

  /// Refuses the model if `name` is set to anything but `only` (or null, or absent).
  void require_value(const char* name, const Json& only) const {
    const Json* value = find({name});
    require<InputError>(value == nullptr || *value == only, "config.json: ", name, " = ",
                        value ? value->dump() : "", " is not supported (only ", only.dump(),
                        " is)");
  }

  /// Refuses the model if `name` is set at all (empty lists and objects count as unset).
  void require_absent(const char* name) const {
    const Json* value = find({name});
    const bool unset = value == nullptr || (value->is_structured() && value->empty());
    require<InputError>(unset, "config.json: ", name, " = ", value ? value->dump() : "",
                        " is not supported");
  }

 private:
  const Json& config_;
};

ops::Activation parse_activation(const std::string& name) {
  if (name == "relu") {
    return ops::Activation::kRelu;
  }
  if (name == "gelu") {
    return ops::Activation::kGelu;
  }
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh") {
    return ops::Activation::kGeluTanh;
  }
  if (name == "silu" || name == "swish") {
    return ops::Activation::kSilu;
  }
  throw InputError(str("config.json: activation_function = \"", name,
                       "\" is not supported (relu, gelu, gelu_new and silu are)"));
}

void read_opt(const ConfigKeys& keys, ModelSpec& spec) {
  keys.require_value("enable_bias", true);
  keys.require_value("layer_norm_elementwise_affine", true);
  spec.vocab = keys.positive({"vocab_size"}, 50272);
  spec.hidden = keys.positive({"hidden_size"}, 768);
  spec.embed_dim = keys.positive({"word_embed_proj_dim"}, spec.hidden);
  spec.layers = keys.layers({"num_hidden_layers"}, 12);
  spec.heads = keys.positive({"num_attention_heads"}, 12);
  spec.ffn = keys.positive({"ffn_dim"}, 3072);
  spec.max_positions = keys.positive({"max_position_embeddings"}, 2048);
  spec.position_offset = 2;
  spec.activation = parse_activation(keys.text("activation_function", "relu"));
  spec.norm_before = keys.flag("do_layer_norm_before", true);
  spec.final_norm = spec.norm_before && !keys.flag("_remove_final_layer_norm", false);
  spec.init_std = keys.number({"init_std"}, 0.02);
  spec.hidden_dropout = keys.dropout("dropout", 0.1);
  spec.attention_dropout = keys.dropout("attention_dropout", 0.0);
  spec.bos = keys.token("bos_token_id", 2);
  spec.eos = keys.token("eos_token_id", 2);
  spec.pad = keys.token("pad_token_id", 1);
}

void read_bloom(const ConfigKeys& keys, ModelSpec& spec) {
  spec.vocab = keys.positive({"vocab_size"}, 250880);
  spec.hidden = keys.positive({"hidden_size", "n_embed"}, 64);
  spec.embed_dim = spec.hidden;
  spec.layers = keys.layers({"n_layer", "num_hidden_layers"}, 2);
  spec.heads = keys.positive({"n_head", "num_attention_heads"}, 8);
  spec.ffn = 4 * spec.hidden;
  spec.position = PositionKind::kAlibi;
  spec.activation = ops::Activation::kGeluTanh;
  spec.embed_norm = true;
  spec.interleaved_qkv = true;
  spec.residual_after_norm = keys.flag("apply_residual_connection_post_layernorm", false);
  spec.norm_eps = keys.number({"layer_norm_epsilon"}, 1e-5);
  spec.init_std = keys.number({"initializer_range"}, 0.02);
  spec.hidden_dropout = keys.dropout("hidden_dropout", 0.0);
  spec.attention_dropout = keys.dropout("attention_dropout", 0.0);
  spec.bos = keys.token("bos_token_id", 1);
  spec.eos = keys.token("eos_token_id", 2);
  spec.pad = keys.token("pad_token_id", -1);
}

void read_gpt2(const ConfigKeys& keys, ModelSpec& spec) {
  keys.require_value("scale_attn_weights", true);
  keys.require_value("scale_attn_by_inverse_layer_idx", false);
  spec.vocab = keys.positive({"vocab_size"}, 50257);
  spec.hidden = keys.positive({"n_embd", "hidden_size"}, 768);
  spec.embed_dim = spec.hidden;
  spec.layers = keys.layers({"n_layer", "num_hidden_layers"}, 12);
  spec.heads = keys.positive({"n_head", "num_attention_heads"}, 12);
  spec.ffn = keys.positive({"n_inner"}, 4 * spec.hidden);
  spec.max_positions = keys.positive({"n_positions", "max_position_embeddings"}, 1024);
  spec.activation = parse_activation(keys.text("activation_function", "gelu_new"));
  spec.norm_eps = keys.number({"layer_norm_epsilon"}, 1e-5);
  spec.init_std = keys.number({"initializer_range"}, 0.02);
  spec.embed_dropout = keys.dropout("embd_pdrop", 0.1);
  spec.hidden_dropout = keys.dropout("resid_pdrop", 0.1);
  spec.attention_dropout = keys.dropout("attn_pdrop", 0.1);
  spec.bos = keys.token("bos_token_id", 50256);
  spec.eos = keys.token("eos_token_id", 50256);
  spec.pad = keys.token("pad_token_id", -1);
}

void refuse_unsupported(const ConfigKeys& keys) {
  for (const char* name : {"quantization_config", "sliding_window", "rope_scaling", "pruned_heads",
                           "lora_r", "lora_rank", "lora_alpha", "peft_type", "adapters"}) {
    keys.require_absent(name);
  }
  for (const char* name : {"is_encoder_decoder", "add_cross_attention", "use_sliding_window"}) {
    keys.require_value(name, false);
  }
}

}  // namespace

ModelSpec ModelSpec::from_hf(const Json& config) {
  require<InputError>(config.is_object(), "config.json: a JSON object was expected");
  const ConfigKeys keys(config);
  ModelSpec spec;
  spec.model_type = keys.text("model_type", "");
  refuse_unsupported(keys);
  if (spec.model_type == "opt") {
    read_opt(keys, spec);
  } else if (spec.model_type == "bloom") {
    read_bloom(keys, spec);
  } else if (spec.model_type == "gpt2") {
    read_gpt2(keys, spec);
  } else {
    throw InputError(spec.model_type.empty() ? std::string("config.json: model_type is missing")
                                             : str("config.json: model_type = \"", spec.model_type,
                                                   "\" is not supported"),
                     "supported model types are opt, bloom and gpt2");
  }
  spec.kv_heads = spec.heads;
  for (int64_t* token : {&spec.bos, &spec.eos, &spec.pad}) {
    *token = *token < spec.vocab ? *token : -1;
  }
  spec.constant_token = spec.model_type == "opt" ? spec.pad : -1;
  spec.tied_head = keys.flag("tie_word_embeddings", true);
  require<InputError>(spec.hidden % spec.heads == 0, "config.json: a hidden size of ", spec.hidden,
                      " cannot be split over ", spec.heads, " attention heads");
  return spec;
}

void ModelSpec::require_length(int64_t tokens) const {
  if (max_positions > 0 && tokens > max_positions) {
    throw InputError(str("a sequence of ", tokens, " tokens is longer than the model's ",
                         max_positions, " positions"),
                     "use shorter texts, answers or sequences, or a model with more positions");
  }
}

std::vector<float> ModelSpec::alibi_slopes() const {
  if (position != PositionKind::kAlibi) {
    return {};
  }
  const at::Tensor slopes = ops::alibi_slopes(heads);
  return {slopes.const_data_ptr<float>(), slopes.const_data_ptr<float>() + heads};
}

}  // namespace reknit
