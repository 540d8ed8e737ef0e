#include "reknit/models/activations.h"

#include "reknit/kernels/attention_limits.h"
#include "reknit/kernels/lm_head_chunks.h"
#include "reknit/models/block.h"
#include "reknit/models/groups.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

namespace reknit {
namespace {

constexpr int64_t kFp32 = 4;
constexpr int64_t kIndex = 8;

/// Widths of a model in bytes per token.
struct Widths {
  int64_t hidden, embed, qkv, heads, ffn, element;

  Widths(const ModelSpec& spec, at::ScalarType dtype)
      : element(static_cast<int64_t>(c10::elementSize(dtype))) {
    hidden = spec.hidden * element;
    embed = spec.embed_dim * element;
    qkv = (spec.heads + 2 * spec.kv_heads) * spec.head_dim() * element;
    heads = spec.heads * spec.head_dim() * element;
    ffn = spec.ffn * element;
  }
};

/// What BlockSaved holds per token, the block's input included: input, middle, two norms'
/// statistics and results where they are kept, qkv, attention with its log-sums, one wide tensor.
int64_t block_saved(const ModelSpec& spec, const Widths& w) {
  const int64_t normed = norms_again(spec) ? 0 : 2 * w.hidden;
  return 2 * w.hidden + normed + 4 * kFp32 + w.qkv + w.heads + spec.heads * kFp32 + w.ffn;
}

/// What EmbedSaved and HeadSaved hold per token, and the logits' statistics.
int64_t ends_saved(const ModelSpec& spec, const Widths& w) {
  int64_t bytes = w.hidden;  // of the last block
  bytes += spec.embed_norm ? w.hidden + 2 * kFp32 : 0;
  bytes += spec.embed_dim != spec.hidden ? 2 * w.embed : 0;
  bytes += spec.final_norm ? w.hidden + 2 * kFp32 : 0;
  bytes += spec.position == PositionKind::kLearned && spec.position_offset != 0 ? kIndex : 0;
  bytes += spec.value_head ? 0 : 2 * kFp32;
  return bytes;
}

int64_t recomputed_blocks(const ModelSpec& spec, const Checkpointing& checkpointing) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    count += checkpointing.recomputes(layer);
  }
  return count;
}

/// The most that a backward of one block holds beside what was saved: two wide tensors, the
/// gradient of its result, and the result of a norm that is computed again.
int64_t block_transient(const ModelSpec& spec, const Widths& w) {
  return 2 * w.ffn + w.hidden + (norms_again(spec) ? w.hidden : 0);
}

int64_t logits_workspace(const ModelSpec& spec, int64_t tokens, const Widths& w, bool cuda) {
  if (spec.value_head) {
    return 0;
  }
  const int64_t rows = std::min(tokens, ops::logit_chunk_rows(spec.vocab, cuda));
  return rows * spec.vocab * (kFp32 + (w.element == kFp32 ? 0 : w.element));
}

/// Fused: fp32 sums of one gradient, and where flash attention runs q, k and v's before they are
/// copied into place.
/// Dense: padded copies of eight tensors, and two fp32 squares for a chunk of the heads.
int64_t attention_workspace(const ModelSpec& spec, const BatchShape& batch, const Widths& w,
                            bool dense) {
  const int64_t tokens = batch.tokens();
  if (!dense) {
    return tokens * (w.qkv + w.heads / w.element * kFp32);
  }
  constexpr int64_t kMaxScores = int64_t{64} << 20;
  const int64_t square = batch.length * batch.length;
  const int64_t heads = std::min(batch.sequences * spec.heads,
                                 std::max<int64_t>(1, kMaxScores / std::max<int64_t>(1, square)));
  return 8 * tokens * w.heads + heads * square * (2 * kFp32 + w.element);
}

}  // namespace

bool attention_is_dense(const ModelSpec& spec, const BatchShape& batch, at::ScalarType dtype,
                        bool cuda) {
  const bool alibi = spec.position == PositionKind::kAlibi;
  return !cuda || dtype == at::kFloat || spec.head_dim() % 8 != 0 ||
         spec.head_dim() > (alibi ? ops::kCudnnWidestHead : ops::kFlashWidestHead) ||
         (alibi && batch.length < ops::kCudnnShortest);
}

ActivationBytes training_activations(const ModelSpec& spec, const BatchShape& batch,
                                     at::ScalarType dtype, Checkpointing checkpointing, bool cuda) {
  const Widths w(spec, dtype);
  const int64_t tokens = batch.tokens();
  const int64_t block = block_saved(spec, w);
  const int64_t again = recomputed_blocks(spec, checkpointing);
  ActivationBytes bytes;
  bytes.kept = tokens * (again * w.hidden + (spec.layers - again) * block + ends_saved(spec, w));
  // Blocks run backwards when the head's part is gone; while the head runs, no block does.
  const int64_t head = tokens * w.embed + logits_workspace(spec, tokens, w, cuda);
  const int64_t gone = tokens * ends_saved(spec, w);
  const int64_t one_block =
      tokens * (block_transient(spec, w) + (again > 0 ? block - w.hidden : 0)) - gone;
  const bool blocks_decide = one_block > head;
  bytes.transient = blocks_decide ? one_block : tokens * w.embed;
  const int64_t attention =
      attention_workspace(spec, batch, w, attention_is_dense(spec, batch, dtype, cuda)) +
      tokens * (w.qkv + w.heads - 3 * w.ffn);
  bytes.workspace =
      blocks_decide ? std::max<int64_t>(0, attention) : logits_workspace(spec, tokens, w, cuda);
  return bytes;
}

ActivationBytes generation_activations(const ModelSpec& spec, const BatchShape& batch,
                                       at::ScalarType dtype, bool cuda) {
  const Widths w(spec, dtype);
  const int64_t tokens = batch.tokens();
  ActivationBytes bytes;
  bytes.transient = tokens * (3 * w.hidden + 2 * w.ffn) + tokens * w.qkv;
  const int64_t logits = batch.sequences * spec.table_rows() * kFp32;
  bytes.workspace = std::max(
      attention_workspace(spec, batch, w, attention_is_dense(spec, batch, dtype, cuda)) / 2,
      2 * logits);
  return bytes;
}

double recomputed_share(const ModelSpec& spec, const Checkpointing& checkpointing) {
  return spec.layers == 0 ? 1.0
                          : static_cast<double>(recomputed_blocks(spec, checkpointing)) /
                                static_cast<double>(spec.layers);
}

int64_t num_parameters(const ModelSpec& spec) {
  int64_t count = 0;
  for (const GroupSpec& group : model_groups(spec)) {
    for (const ParamSpec& param : group.params) {
      int64_t numel = 1;
      for (const int64_t size : param.shape) {
        numel *= size;
      }
      count += numel;
    }
  }
  return count;
}

ForwardWork forward_work(const ModelSpec& spec, const BatchShape& batch) {
  const auto tokens = static_cast<double>(batch.tokens());
  const auto hidden = static_cast<double>(spec.hidden);
  const auto heads = static_cast<double>(spec.heads * spec.head_dim());
  const auto qkv = static_cast<double>((spec.heads + 2 * spec.kv_heads) * spec.head_dim());
  const auto layers = static_cast<double>(spec.layers);
  ForwardWork work;
  // Half of the scores lie above the diagonal; two products over the rest.
  work.scores = layers * 2 * tokens * static_cast<double>(batch.length) * heads;
  work.blocks = layers * 2 * tokens * hidden * (qkv + heads + 2 * static_cast<double>(spec.ffn)) +
                work.scores;
  if (spec.embed_dim != spec.hidden) {
    work.output += 2 * 2 * tokens * hidden * static_cast<double>(spec.embed_dim);
  }
  if (!spec.value_head) {
    work.output +=
        2 * tokens * static_cast<double>(spec.embed_dim) * static_cast<double>(spec.vocab);
  }
  return work;
}

}  // namespace reknit
