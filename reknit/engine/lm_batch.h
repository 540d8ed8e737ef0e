// Sequences to learn the next token from, and the packed batches they become.
#pragma once

#include "reknit/models/decoder.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace reknit {

/// One sequence on the host. What it teaches depends on nothing else: not on the batch or
/// the rank that it is in.
struct LmSequence {
  uint64_t number = 0;             ///< in the run's order, from 0: its dropout depends on it
  std::vector<int64_t> tokens;     ///< L
  std::vector<int64_t> targets;    ///< L: what follows each token; -1: not in the loss
  std::vector<int64_t> lengths;    ///< pieces that attention keeps apart; their sum is L
  std::vector<int64_t> positions;  ///< L, in the position table; empty: the place in the piece

  int64_t num_targets() const;
};

/// What an end-of-document token does inside a sample.
struct DocumentRules {
  int64_t eod = -1;                   ///< the token; -1: there is none
  bool mask_loss = false;             ///< what follows it is not in the loss
  bool reset_position_ids = false;    ///< positions begin again after it
  bool reset_attention_mask = false;  ///< nothing after it attends to what was before
};

/// The L inputs and L targets of a sample of L + 1 tokens.
LmSequence lm_sequence(std::span<const int64_t> sample, uint64_t number,
                       const DocumentRules& rules);

/// `sequences` one after the other on the rank's device.
struct LmBatch {
  TokenBatch tokens;
  at::Tensor targets;  ///< [N] int64, -1: none
  at::Tensor counted;  ///< [N] fp32, 1 where there is a target

  /// `dropout_key`: {seed, step}, or none for evaluation. InputError as TokenBatch::of, and
  /// for a position outside the model's table.
  struct DropoutKey {
    uint64_t seed;
    uint64_t step;
  };
  static LmBatch of(std::span<const LmSequence> sequences, const ModelSpec& spec,
                    const std::optional<DropoutKey>& dropout_key);
};

}  // namespace reknit
