// What a decoder-only model is made of; an architecture is a value of this type.
#pragma once

#include "reknit/kernels/attention.h"
#include "reknit/kernels/ops.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace reknit {

enum class PositionKind {
  kLearned,  ///< a table of embeddings, rows shifted by `position_offset`
  kAlibi,    ///< linear biases on attention scores
};

/// Sizes, kinds and places. Everything downstream is derived from it: the groups and
/// their parameters, the computation, the names in files. A plain value; host only.
struct ModelSpec {
  std::string model_type;    ///< Hugging Face's word: "opt", "bloom", "gpt2"
  int64_t vocab = 0;         ///< tokens that exist; the softmax runs over these
  int64_t padded_vocab = 0;  ///< rows of the tables, if more than `vocab`; 0: no padding
  int64_t hidden = 0;
  int64_t embed_dim =
      0;  ///< width of the embedding and of the output; != hidden has project_in/out
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t ffn = 0;
  int64_t max_positions = 0;  ///< 0: unlimited (ALiBi)
  PositionKind position = PositionKind::kLearned;
  int64_t position_offset = 0;  ///< OPT: 2
  ops::Activation activation = ops::Activation::kRelu;
  bool norm_before = true;  ///< false: post-layernorm (OPT-350m)
  bool embed_norm = false;  ///< BLOOM
  bool final_norm = true;   ///< OPT-350m has none
  bool interleaved_qkv = false;
  bool residual_after_norm = false;  ///< BLOOM's apply_residual_connection_post_layernorm
  bool tied_head = true;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  /// In training, of the embeddings, of each branch's result, of attention's probabilities.
  double embed_dropout = 0.0, hidden_dropout = 0.0, attention_dropout = 0.0;
  int64_t bos = -1, eos = -1,
          pad = -1;             ///< -1: none, or not in the vocabulary; eos: the first of several
  int64_t constant_token = -1;  ///< OPT's pad: looking it up trains nothing (a tied head does)
  bool value_head = false;      ///< critic and reward: v_head [1, embed_dim] in place of logits

  int64_t head_dim() const { return hidden / heads; }
  ops::HeadLayout head_layout() const { return {heads, kv_heads, head_dim(), interleaved_qkv}; }

  int64_t table_rows() const { return padded_vocab > vocab ? padded_vocab : vocab; }
  /// Reads its logits from the token table (a value head has no use for one).
  bool tied_output() const { return tied_head && !value_head; }

  /// Reads config.json (written by transformers 4 or 5); absent keys have the defaults
  /// of the model's configuration class there. An unknown model_type
  /// or a setting that is not supported: InputError naming key and value. `value_head`
  /// stays false: only the folder's tensors tell (find_value_head in name_map.h).
  static ModelSpec from_hf(const nlohmann::json& config);

  /// Throws InputError naming both numbers if a sequence of `tokens` has no positions.
  /// Generation must ask for prompt plus answer: decode cannot know without waiting.
  void require_length(int64_t tokens) const;

  /// ops::alibi_slopes, one per head; empty without ALiBi.
  std::vector<float> alibi_slopes() const;
};

}  // namespace reknit
