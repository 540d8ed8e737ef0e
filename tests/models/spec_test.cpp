// config.json to ModelSpec: defaults, old and new keys, refusals.
#include "reknit/models/spec.h"

#include "reknit/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

Json opt_350m() {
  return {{"model_type", "opt"},
          {"vocab_size", 50272},
          {"hidden_size", 1024},
          {"word_embed_proj_dim", 512},
          {"num_hidden_layers", 24},
          {"num_attention_heads", 16},
          {"ffn_dim", 4096},
          {"max_position_embeddings", 2048},
          {"do_layer_norm_before", false},
          {"dropout", 0.1},
          {"activation_function", "relu"},
          {"torch_dtype", "float16"},
          {"eos_token_id", 2}};
}

/// The sentence with which `config` is refused; empty if it is not.
std::string refusal(const Json& config) {
  try {
    ModelSpec::from_hf(config);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

std::string refusal_with(Json config, const std::string& key, const Json& value) {
  config[key] = value;
  return refusal(config);
}

TEST(Spec, Opt350mIsPostNormWithItsOwnEmbeddingWidthAndNoFinalNorm) {
  const ModelSpec spec = ModelSpec::from_hf(opt_350m());
  EXPECT_EQ(spec.embed_dim, 512);
  EXPECT_EQ(spec.hidden, 1024);
  EXPECT_EQ(spec.head_dim(), 64);
  EXPECT_EQ(spec.position_offset, 2);
  EXPECT_FALSE(spec.norm_before);
  EXPECT_FALSE(spec.final_norm);
  EXPECT_TRUE(spec.tied_head);
}

TEST(Spec, AbsentKeysHaveTheDefaultsOfTransformers) {
  const ModelSpec opt = ModelSpec::from_hf({{"model_type", "opt"}});
  EXPECT_EQ(opt.vocab, 50272);
  EXPECT_EQ(opt.embed_dim, 768);
  EXPECT_EQ(opt.eos, 2);
  EXPECT_TRUE(opt.norm_before && opt.final_norm);
  const ModelSpec gpt2 = ModelSpec::from_hf({{"model_type", "gpt2"}, {"n_inner", nullptr}});
  EXPECT_EQ(gpt2.ffn, 4 * 768);
  EXPECT_EQ(gpt2.position_offset, 0);
  EXPECT_EQ(gpt2.activation, ops::Activation::kGeluTanh);
  EXPECT_EQ(gpt2.pad, -1);
}

TEST(Spec, BloomReadsTheKeysOfOldAndNewFiles) {
  const Json old_file{{"model_type", "bloom"},
                      {"n_embed", 1024},
                      {"num_attention_heads", 16},
                      {"n_layer", 24},
                      {"offset_alibi", 100}};
  const Json new_file{{"model_type", "bloom"},
                      {"hidden_size", 1024},
                      {"n_head", 16},
                      {"n_layer", 24},
                      {"dtype", "float32"}};
  for (const Json& file : {old_file, new_file}) {
    const ModelSpec spec = ModelSpec::from_hf(file);
    EXPECT_EQ(spec.hidden, 1024);
    EXPECT_EQ(spec.heads, 16);
    EXPECT_EQ(spec.ffn, 4096);
    EXPECT_EQ(spec.max_positions, 0);
    EXPECT_TRUE(spec.interleaved_qkv && spec.embed_norm);
  }
  EXPECT_THAT(refusal_with(old_file, "hidden_size", 512), HasSubstr("n_embed is 1024"));
}

TEST(Spec, TheFirstOfSeveralEndTokensCountsAndTokensOutsideTheVocabularyAreNone) {
  Json config = opt_350m();
  config["eos_token_id"] = {7, 2};
  config["pad_token_id"] = nullptr;
  config["bos_token_id"] = 50272;
  const ModelSpec spec = ModelSpec::from_hf(config);
  EXPECT_EQ(spec.eos, 7);
  EXPECT_EQ(spec.pad, -1);
  EXPECT_EQ(spec.bos, -1);
}

// nn.Embedding has a padding_idx in OPT alone.
TEST(Spec, LookingUpTheConfigsPadTokenTrainsNothingInOptAlone) {
  const auto constant = [](const char* type, const Json& pad) {
    return ModelSpec::from_hf({{"model_type", type}, {"pad_token_id", pad}}).constant_token;
  };
  EXPECT_EQ(constant("opt", 5), 5);
  EXPECT_EQ(constant("opt", nullptr), -1);
  EXPECT_EQ(ModelSpec::from_hf({{"model_type", "opt"}}).constant_token, 1);
  EXPECT_EQ(constant("bloom", 3), -1);
  EXPECT_EQ(constant("gpt2", 5), -1);
}

TEST(Spec, UnsupportedSettingsAreRefusedByNameAndValue) {
  EXPECT_THAT(refusal({{"model_type", "mamba"}}), HasSubstr("\"mamba\""));
  EXPECT_THAT(refusal(Json::object()), HasSubstr("model_type"));
  EXPECT_THAT(refusal_with(opt_350m(), "enable_bias", false), HasSubstr("enable_bias = false"));
  EXPECT_THAT(refusal_with(opt_350m(), "layer_norm_elementwise_affine", false),
              HasSubstr("layer_norm_elementwise_affine"));
  EXPECT_THAT(refusal_with(opt_350m(), "sliding_window", 4096), HasSubstr("sliding_window = 4096"));
  EXPECT_THAT(refusal_with(opt_350m(), "lora_r", 8), HasSubstr("lora_r"));
  EXPECT_THAT(refusal_with(opt_350m(), "activation_function", "tanh"), HasSubstr("\"tanh\""));
  EXPECT_THAT(refusal_with(opt_350m(), "num_attention_heads", 7), HasSubstr("7 attention heads"));
  EXPECT_THAT(refusal_with(opt_350m(), "hidden_size", "1024"), HasSubstr("hidden_size"));
  EXPECT_THAT(refusal_with(opt_350m(), "ffn_dim", 0), HasSubstr("ffn_dim"));
  EXPECT_THAT(refusal_with({{"model_type", "gpt2"}}, "scale_attn_by_inverse_layer_idx", true),
              HasSubstr("scale_attn_by_inverse_layer_idx"));
  EXPECT_EQ(refusal_with(opt_350m(), "sliding_window", nullptr), "");
  EXPECT_EQ(refusal_with(opt_350m(), "pruned_heads", Json::object()), "");
}

TEST(Spec, AlibiSlopesFollowThePaperAlsoForHeadsThatAreNoPowerOfTwo) {
  ModelSpec spec{.heads = 4, .position = PositionKind::kAlibi};
  EXPECT_THAT(spec.alibi_slopes(), ElementsAre(1.f / 4, 1.f / 16, 1.f / 64, 1.f / 256));
  spec.heads = 6;
  EXPECT_THAT(spec.alibi_slopes(),
              ElementsAre(1.f / 4, 1.f / 16, 1.f / 64, 1.f / 256, 1.f / 2, 1.f / 8));
  spec.position = PositionKind::kLearned;
  EXPECT_TRUE(spec.alibi_slopes().empty());
}

TEST(Spec, ASequenceLongerThanThePositionsIsRefusedWithBothNumbers) {
  const ModelSpec spec = ModelSpec::from_hf(opt_350m());
  EXPECT_NO_THROW(spec.require_length(2048));
  try {
    spec.require_length(2049);
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("2049"));
    EXPECT_THAT(error.what(), HasSubstr("2048"));
  }
  EXPECT_NO_THROW(ModelSpec::from_hf({{"model_type", "bloom"}}).require_length(1 << 20));
}

}  // namespace
}  // namespace reknit
