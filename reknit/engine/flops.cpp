#include "reknit/engine/flops.h"

#include "reknit/models/activations.h"

namespace reknit {

double forward_flops(const ModelSpec& spec, int64_t length) {
  const ForwardWork work = forward_work(spec, {1, length});
  return work.total() + work.scores;  // those above the diagonal as well
}

double training_flops(const ModelSpec& spec, int64_t length, const Checkpointing& checkpointing) {
  const ForwardWork work = forward_work(spec, {1, length});
  return 3 * forward_flops(spec, length) +
         (work.blocks + work.scores) * recomputed_share(spec, checkpointing);
}

}  // namespace reknit
