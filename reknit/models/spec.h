// What a decoder-only model is made of; an architecture is a value of this type.
#pragma once

#include "reknit/kernels/attention.h"
#include "reknit/kernels/ops.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

namespace reknit {

enum class PositionKind {
  kLearned,  ///< a table of embeddings, rows shifted by `position_offset`
  kAlibi,    ///< linear biases on attention scores
};

/// Sizes, kinds and places. Everything downstream is derived from it.
struct ModelSpec {
  std::string model_type;  ///< Hugging Face's word: "opt", "bloom", "gpt2"
  int64_t vocab = 0;
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
  int64_t bos = -1, eos = -1, pad = -1;
  bool value_head = false;  ///< critic and reward: v_head [1, embed_dim] in place of logits

  int64_t head_dim() const { return hidden / heads; }
  ops::HeadLayout head_layout() const { return {heads, kv_heads, head_dim(), interleaved_qkv}; }

  /// Reads config.json (written by transformers 4 or 5). An unknown model_type or a
  /// setting that is not supported: InputError naming it.
  static ModelSpec from_hf(const nlohmann::json& config);
};

}  // namespace reknit
