// A decoder-only model with hand-written forward and backward, over a ParamSource.
//
// Groups, in order: 0 "embed" (token and position embeddings, embedding norm,
// project_in), 1..L "block i", L + 1 "head" (final norm, project_out, v_head or an
// untied output table). A forward uses 0, 1, .., L + 1 and then, for the tied output
// table, 0 again; a backward the reverse. All tokens are packed (no padding).
#pragma once

#include "reknit/kernels/lm_head.h"
#include "reknit/models/seams.h"
#include "reknit/models/spec.h"
#include "reknit/store/param_ref.h"

#include <memory>
#include <vector>

namespace reknit {

/// Packed input: tokens [N] int64 with the lengths of its sequences.
struct TokenBatch {
  at::Tensor tokens;
  ops::Packing packing;
};

/// What a forward leaves for its backward (chosen by us; freed as backward consumes it).
class Saved;

/// Full activations, or only block inputs (blocks are recomputed in the backward).
enum class Checkpointing { kNone, kFull };

class Decoder {
 public:
  explicit Decoder(ModelSpec spec);
  ~Decoder();

  const ModelSpec& spec() const { return spec_; }
  /// The groups in order, for the store.
  std::vector<GroupSpec> groups() const;
  /// The order in which a forward opens groups; a backward opens them in reverse.
  std::vector<GroupId> forward_order() const;

  /// -> final hidden states [N, embed_dim], what the output table or v_head reads.
  /// With `saved` the backward's needs are kept.
  at::Tensor forward(ParamSource& params, const TokenBatch& batch, Phase phase,
                     std::shared_ptr<Saved>* saved = nullptr,
                     Checkpointing checkpointing = Checkpointing::kNone) const;

  /// Log-probabilities of `targets` [N] int64 (-1: none) -> ops::TokenLogprobs.
  ops::TokenLogprobs logprobs(ParamSource& params, const TokenBatch& batch,
                              const at::Tensor& targets, Phase phase, bool with_entropy,
                              std::shared_ptr<Saved>* saved = nullptr,
                              Checkpointing checkpointing = Checkpointing::kNone) const;
  /// d_logp [N] fp32; opens, fills and reduces every group's gradients.
  void logprobs_backward(ParamSource& params, std::shared_ptr<Saved> saved,
                         const at::Tensor& d_logp) const;

  /// Values of the value head, one per token: [N] fp32.
  at::Tensor values(ParamSource& params, const TokenBatch& batch, Phase phase,
                    std::shared_ptr<Saved>* saved = nullptr,
                    Checkpointing checkpointing = Checkpointing::kNone) const;
  void values_backward(ParamSource& params, std::shared_ptr<Saved> saved,
                       const at::Tensor& d_values) const;

  /// Generation: runs the packed prompts, fills the cache, returns the fp32 logits of
  /// the last token of each prompt [B, V].
  at::Tensor prefill(ParamSource& params, const TokenBatch& batch, const KvView& cache) const;
  /// One token per row: tokens [B] int64 at positions cache.lengths() -> logits [B, V].
  at::Tensor decode(ParamSource& params, const at::Tensor& tokens, const KvView& cache) const;

 private:
  ModelSpec spec_;
  at::Tensor slopes_;
};

}  // namespace reknit
