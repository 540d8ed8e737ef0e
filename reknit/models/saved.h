// What a decoder's forward leaves for its backward.
#pragma once

#include "reknit/models/block.h"
#include "reknit/models/decoder.h"
#include "reknit/models/embed.h"
#include "reknit/models/head.h"

#include <vector>

namespace reknit {

class Saved {
 public:
  TokenBatch batch;
  Checkpointing checkpointing = Checkpointing::kNone;
  bool consumed = false;

  EmbedSaved embed;
  std::vector<BlockSaved> blocks;        ///< of the blocks that are not recomputed
  std::vector<at::Tensor> block_inputs;  ///< of those that are: [N, H] each
  HeadSaved head;

  at::Tensor hidden;            ///< [N, embed_dim]
  at::Tensor targets;           ///< logprobs only
  ops::TokenLogprobs logprobs;  ///< logprobs only
  at::Tensor d_x;               ///< [N, H] of the last block; learn_logprobs only
};

}  // namespace reknit
