// What a forward leaves for its backward, against the arithmetic that plans rest on.
#include "reknit/models/activations.h"
#include "reknit/models/saved.h"
#include "tests/models/golden_case.h"

#include <gtest/gtest.h>

#include <set>

namespace reknit {
namespace {

/// Bytes of distinct memory; tensors may share it.
class Memory {
 public:
  void add(const at::Tensor& tensor) {
    if (tensor.defined() && seen_.insert(tensor.storage().data()).second) {
      bytes_ += static_cast<int64_t>(tensor.storage().nbytes());
    }
  }
  void add(const ops::Normed& normed) {
    add(normed.y);
    add(normed.mean);
    add(normed.rstd);
  }
  void add(const ResidualSaved& saved) {
    add(saved.branch_input);
    add(saved.norm_input);
    add(saved.normed);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::set<const void*> seen_;
  int64_t bytes_ = 0;
};

int64_t bytes_of(const Saved& saved) {
  Memory memory;
  for (const BlockSaved& block : saved.blocks) {
    memory.add(block.attn);
    memory.add(block.mlp);
    for (const at::Tensor& tensor :
         {block.qkv, block.attention.out, block.attention.lse, block.fc1_out, block.activated}) {
      memory.add(tensor);
    }
  }
  for (const at::Tensor& input : saved.block_inputs) {
    memory.add(input);
  }
  memory.add(saved.embed.normed);
  memory.add(saved.head.normed);
  for (const at::Tensor& tensor :
       {saved.embed.position_ids, saved.embed.looked_up, saved.embed.norm_input,
        saved.head.norm_input, saved.head.project_input, saved.hidden, saved.logprobs.logp,
        saved.logprobs.lse}) {
    memory.add(tensor);
  }
  return memory.bytes();
}

TEST(Activations, WhatIsKeptIsWhatAForwardLeaves) {
  const BatchShape shape{3, 7};
  for (const std::string& name : kGoldenCases) {
    const GoldenCase c(name);
    const Decoder decoder(c.spec);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      PlainSource params(decoder.groups(), dtype, c10::kCPU);
      c.fill(params);
      const std::vector<int64_t> tokens(shape.tokens(), 5);
      const auto batch = TokenBatch::of(tokens, {7, 7, 7}, c.spec, c10::kCPU);
      for (const Checkpointing mode : {Checkpointing::kNone, Checkpointing::kFull}) {
        std::shared_ptr<Saved> saved;
        decoder.logprobs(params, batch, batch.tokens, Phase::kForward, false, &saved, mode);
        const auto planned =
            static_cast<double>(training_activations(c.spec, shape, dtype, mode, false).kept);
        const auto left = static_cast<double>(bytes_of(*saved));
        EXPECT_NEAR(planned, left, 0.03 * left)
            << name << ", " << c10::toString(dtype) << (mode.every > 0 ? ", recomputing" : "");
      }
    }
  }
}

TEST(Activations, ParametersAndWorkOfKnownModels) {
  const ModelSpec spec = ModelSpec::from_hf(nlohmann::json::parse(R"({"model_type": "opt",
      "vocab_size": 50272, "hidden_size": 2048, "num_hidden_layers": 24,
      "num_attention_heads": 32, "ffn_dim": 8192, "max_position_embeddings": 2048,
      "word_embed_proj_dim": 2048})"));
  EXPECT_EQ(num_parameters(spec), 1'315'758'080);
  // Two operations a parameter and token, the position table apart, and causal attention.
  const ForwardWork work = forward_work(spec, {8, 2048});
  const double tokens = 8 * 2048;
  const double matrices = 24 * 12.0 * 2048 * 2048 + 50272.0 * 2048;
  EXPECT_NEAR(work.total(), 2 * tokens * matrices + 24 * 2 * tokens * 2048 * 2048, 1e9);
}

}  // namespace
}  // namespace reknit
