// The vocabulary end of a model: log-probabilities without full logits, sampling.
// Conventions of ops.h hold.
#pragma once

#include "reknit/base/param_view.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reknit::ops {

/// Per token, fp32.
struct TokenLogprobs {
  at::Tensor logp;     ///< [N] log softmax(hidden table^T)[target]; 0 where target < 0
  at::Tensor lse;      ///< [N] log-sum-exp of the logits, for the backward
  at::Tensor entropy;  ///< [N] of the distribution; undefined unless asked for
};

/// hidden [N, E], table [V, E], targets [N] int64 (-1: no target, never enters
/// arithmetic). Works in chunks of rows: no [N, V] tensor exists. Columns >= `vocab`
/// (padded rows of the table) are left out of the softmax; vocab = 0 means all.
TokenLogprobs token_logprobs(const at::Tensor& hidden, const ParamView& table,
                             const at::Tensor& targets, int64_t vocab, bool with_entropy);

/// d_logp [N] fp32 -> d_hidden [N, E]; accumulates into d_table [V, E] (undefined:
/// frozen). Rows with target < 0 get exactly 0.
at::Tensor token_logprobs_backward(const at::Tensor& d_logp, const at::Tensor& hidden,
                                   const ParamView& table, const at::Tensor& targets,
                                   const TokenLogprobs& saved, int64_t vocab,
                                   const at::Tensor& d_table);

/// token_logprobs without entropies and token_logprobs_backward in one: where the gradient is
/// known beforehand, the logits are computed once.
struct LearnedLogprobs {
  TokenLogprobs logprobs;
  at::Tensor d_hidden;  ///< [N, E]
};
LearnedLogprobs learn_token_logprobs(const at::Tensor& d_logp, const at::Tensor& hidden,
                                     const ParamView& table, const at::Tensor& targets,
                                     int64_t vocab, const at::Tensor& d_table);

/// hidden [B, E] -> [B, V] fp32 logits (all columns).
at::Tensor logits(const at::Tensor& hidden, const ParamView& table);

struct SampleSettings {
  double temperature = 1.0;  ///< 0: greedy (first of equals)
  int64_t top_k = 0;         ///< 0: off
  double top_p = 1.0;        ///< keeps the smallest set whose probability reaches p
  int64_t vocab = 0;         ///< columns that count; 0: all
};

struct Sampled {
  at::Tensor tokens;  ///< [B] int64
  at::Tensor logp;    ///< [B] fp32, of the unmodified distribution (temperature 1)
};

/// logits [B, V] fp32. Row b draws with Philox{keys[b]} at counter (positions[b], 0):
/// the token is a pure function of (logits row, key, position). `keys`, `positions`
/// [B] int64. Where `forbidden_until[b]` > positions[b], token `eos` cannot be drawn.
Sampled sample(const at::Tensor& logits, const SampleSettings& settings, const at::Tensor& keys,
               const at::Tensor& positions, const at::Tensor& forbidden_until, int64_t eos);

/// Rows whose tokens stay on the device while they are drawn; all tensors are there.
struct DrawState {
  at::Tensor inputs;     ///< [B] int64, the token drawn last
  at::Tensor lengths;    ///< [B] int64, tokens in the cache
  at::Tensor positions;  ///< [B] int64, tokens drawn
  at::Tensor tokens;     ///< [M, B] int64, those drawn so far
  at::Tensor logp;       ///< [M, B] fp32, of each
};

/// Adds what was drawn to `state`: at place [positions[b], b] (nothing past M), and as the
/// next input; lengths and positions grow by one. CUDA only.
void keep_drawn(const Sampled& drawn, const DrawState& state);

}  // namespace reknit::ops
