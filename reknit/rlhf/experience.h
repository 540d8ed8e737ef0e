// What PPO knows of one prompt and its answer.
#pragma once

#include "reknit/models/decoder.h"
#include "reknit/rlhf/ppo_math.h"

#include <cstdint>
#include <span>
#include <vector>

namespace reknit {

/// One answer with everything that was said of it. Per-token vectors have an entry for
/// each answer token; see ppo_math.h.
struct Experience {
  std::vector<int64_t> tokens;  ///< prompt and answer
  int64_t prompt_length = 0;
  uint64_t sequence = 0;  ///< global sequence number
  size_t row = 0;         ///< of the data set: its prompt
  bool ended = false;     ///< by the end token, which is the last token then
  std::vector<float> logp;
  std::vector<float> ref_logp;
  std::vector<float> values;
  std::vector<float> entropy;
  double score = 0.0;
  std::vector<uint8_t> mask;  ///< 1: the entry counts in the losses
  std::vector<double> advantages;
  std::vector<double> returns;

  size_t answer_length() const { return tokens.size() - static_cast<size_t>(prompt_length); }
  int64_t unmasked() const;
};

/// The packed input of several experiences, on the calling rank's device.
struct ExperienceBatch {
  TokenBatch tokens;
  at::Tensor targets;               ///< [N]: the answer token that follows, -1 elsewhere
  std::vector<int64_t> entry_rows;  ///< row of every entry of every experience, in order
  std::vector<int64_t> last_rows;   ///< row of each sequence's last token

  static ExperienceBatch of(std::span<const Experience> experiences);

  /// Splits a per-row tensor [N] into one vector per experience, entries only.
  std::vector<std::vector<float>> entries(std::span<const Experience> experiences,
                                          const at::Tensor& per_row) const;
  /// The inverse: per-entry numbers, concatenated, to a [N] fp32 tensor, 0 elsewhere.
  at::Tensor scatter(std::span<const float> per_entry) const;
};

}  // namespace reknit
