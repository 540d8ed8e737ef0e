// One config.json, whoever writes the folder.
#include "reknit/checkpoint/hf_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "reknit/base/error.h"

namespace reknit {
namespace {

using nlohmann::json;

TEST(HfConfig, SaysTheDtypeOnceAndTheLabelOfAValueHead) {
  const json given = {{"model_type", "gpt2"},
                      {"vocab_size", 7},
                      {"n_embd", 8},
                      {"n_head", 2},
                      {"n_layer", 1},
                      {"n_positions", 16},
                      {"dtype", "float32"},
                      {"other", true},
                      {"torch_dtype", "float32"},
                      {"id2label", {{"0", "good"}}},
                      {"label2id", 1}};
  ModelSpec spec = ModelSpec::from_hf(given);
  json written = written_config(given, spec, at::kBFloat16);
  EXPECT_EQ(written["torch_dtype"], "bfloat16");
  EXPECT_FALSE(written.contains("dtype"));
  EXPECT_EQ(written["architectures"], json::array({"GPT2LMHeadModel"}));
  EXPECT_EQ(written["id2label"], given["id2label"]);
  EXPECT_EQ(written["other"], true);
  spec.value_head = true;
  written = written_config(given, spec, scalar_type(Precision::kFp16));
  EXPECT_EQ(written["torch_dtype"], "float16");
  EXPECT_EQ(written["num_labels"], 1);
  EXPECT_FALSE(written.contains("id2label") || written.contains("label2id"));
  EXPECT_THROW(written_config(given, spec, at::kLong), UsageError);
}

}  // namespace
}  // namespace reknit
