#include "reknit/engine/flops.h"

namespace reknit {
namespace {

double block_flops(const ModelSpec& spec, double length) {
  const auto hidden = static_cast<double>(spec.hidden);
  const double heads = static_cast<double>(spec.heads * spec.head_dim());
  const double keys = static_cast<double>(2 * spec.kv_heads * spec.head_dim());
  const double weights =
      hidden * (heads + keys) + heads * hidden + 2 * hidden * static_cast<double>(spec.ffn);
  return 2 * weights * length + 4 * heads * length * length;
}

}  // namespace

double forward_flops(const ModelSpec& spec, int64_t length) {
  const auto tokens = static_cast<double>(length);
  const auto width = static_cast<double>(spec.embed_dim);
  const double outputs = spec.value_head ? 1.0 : static_cast<double>(spec.table_rows());
  const double projections =
      spec.embed_dim == spec.hidden ? 0.0 : 2 * width * static_cast<double>(spec.hidden);
  return static_cast<double>(spec.layers) * block_flops(spec, tokens) +
         2 * (width * outputs + projections) * tokens;
}

double training_flops(const ModelSpec& spec, int64_t length, const Checkpointing& checkpointing) {
  double flops = 3 * forward_flops(spec, length);
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    flops += checkpointing.recomputes(layer) ? block_flops(spec, static_cast<double>(length)) : 0;
  }
  return flops;
}

}  // namespace reknit
