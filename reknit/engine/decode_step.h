// One decode step of a batch, all of it on the device: embedding, blocks, logits, draw,
// cache and lengths. Recorded as a CUDA graph and replayed token by token.
#pragma once

#include "reknit/engine/cuda_graph.h"
#include "reknit/engine/kv_cache.h"
#include "reknit/kernels/lm_head.h"
#include "reknit/models/decoder.h"
#include "reknit/store/store.h"

#include <memory>
#include <vector>

namespace reknit {

/// What a recorded step was made for; another batch of the same kind replays it.
struct StepKind {
  int64_t rows = 0;
  int64_t most = 0;  ///< tokens of an answer
  int64_t used = 0;  ///< cache tokens that decode looks through
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  int64_t vocab = 0;
  int64_t eos = -1;

  bool operator==(const StepKind&) const = default;
};

/// A batch whose tokens stay on the device while they are drawn. Row r uses cache slot r
/// until the end of the batch, also after its answer has ended. Model, store and cache
/// outlive it; all memory but that of the step's results is taken when it is made.
class DecodeStep {
 public:
  DecodeStep(const Decoder& model, Store& store, KvCache& cache, const StepKind& kind);

  /// A new batch: prompt lengths, keys of the random streams, and the tokens before which
  /// the end token cannot be drawn. The cache holds the prompts.
  void begin(const std::vector<int64_t>& lengths, const std::vector<int64_t>& keys,
             int64_t forbidden_until);
  /// Draws from the prefill's logits [rows, V]: the first token of each answer.
  void draw_first(const at::Tensor& logits) { draw(logits); }
  /// The next token of every row. Nothing waits. The first call runs the kernels one by one,
  /// the second records them, the others replay.
  void run();

  /// Tokens and log-probabilities drawn so far: [most, rows].
  const at::Tensor& tokens() const { return state_.tokens; }
  const at::Tensor& logp() const { return state_.logp; }

 private:
  void run_kernels();
  void draw(const at::Tensor& logits);

  const Decoder& model_;
  Store& store_;
  KvCache& cache_;
  StepKind kind_;
  ops::DrawState state_;
  at::Tensor slots_;
  at::Tensor keys_;
  at::Tensor forbidden_until_;
  bool has_run_ = false;
  std::unique_ptr<CudaGraph> graph_;
};

/// The steps recorded so far. They are valid while weights and cache stay where they were and
/// the cache is cut as it was, which is looked at once a batch.
class DecodeSteps {
 public:
  /// Whether decoding needs nothing but this device, so that steps can be recorded: CUDA,
  /// every weight on this rank, and no build that checks each read.
  static bool usable(const Store& store);

  /// The step for this kind of batch. Reads every group once, so that one that is not Full
  /// and current throws here: a replay does not ask again.
  DecodeStep& step(const Decoder& model, Store& store, KvCache& cache, const StepKind& kind);

  void clear();

 private:
  struct Known {
    StepKind kind;
    std::unique_ptr<DecodeStep> step;
  };
  std::vector<Known> known_;
  std::vector<const void*> addresses_;  ///< of all that the recorded kernels read
  std::vector<int64_t> cache_sizes_;    ///< of a layer's keys: new memory may have the old address
};

}  // namespace reknit
