// Which parameters each group of a decoder has, and at which place.
#pragma once

#include "reknit/models/spec.h"
#include "reknit/store/param_ref.h"

#include <vector>

namespace reknit {

/// Places in group 0; -1 where the model has no such parameter.
struct EmbedParams {
  int tokens = 0;       ///< [table_rows, embed_dim]
  int positions = -1;   ///< [max_positions + position_offset, hidden]
  int project_in = -1;  ///< [hidden, embed_dim]
  int norm_weight = -1, norm_bias = -1;

  static EmbedParams of(const ModelSpec& spec);
};

/// Places in the group of a block: the same for every architecture.
enum BlockParam : int {
  kAttnNormWeight,
  kAttnNormBias,
  kQkvWeight,  ///< [(A + 2K) D, hidden], rows as ops::HeadLayout says
  kQkvBias,
  kAttnOutWeight,
  kAttnOutBias,
  kMlpNormWeight,
  kMlpNormBias,
  kFc1Weight,
  kFc1Bias,
  kFc2Weight,
  kFc2Bias,
};

/// Places in the last group; -1 where the model has no such parameter.
struct HeadParams {
  int norm_weight = -1, norm_bias = -1;
  int project_out = -1;  ///< [embed_dim, hidden]
  int table = -1;        ///< untied output table [table_rows, embed_dim]
  int value = -1;        ///< [1, embed_dim]

  static HeadParams of(const ModelSpec& spec);
};

inline GroupId embed_group() {
  return 0;
}
inline GroupId block_group(int64_t layer) {
  return static_cast<GroupId>(layer + 1);
}
inline GroupId head_group(const ModelSpec& spec) {
  return static_cast<GroupId>(spec.layers + 1);
}

/// Group g is element g; everything trainable, norms and biases without weight decay.
std::vector<GroupSpec> model_groups(const ModelSpec& spec);

}  // namespace reknit
