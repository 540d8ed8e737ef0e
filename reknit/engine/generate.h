// Generation from sharded weights: packed prefill, decode, sampling, lockstep stop.
#pragma once

#include "reknit/engine/decode_step.h"
#include "reknit/engine/kv_cache.h"
#include "reknit/models/decoder.h"
#include "reknit/store/store.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace reknit {

struct SamplingSettings {
  int64_t max_new_tokens = 256;
  int64_t min_new_tokens = 0;  ///< the end token cannot be drawn before
  double temperature = 0.0;    ///< 0: greedy
  int64_t top_k = 0;           ///< 0: off
  double top_p = 1.0;
  uint64_t seed = 1234;
  int64_t eos = -1;   ///< -1: none, every answer has max_new_tokens
  int64_t vocab = 0;  ///< columns that may be drawn; 0: all
};

/// One prompt and the number that its random stream is keyed by.
struct GenerationRequest {
  std::vector<int64_t> prompt;  ///< at least one token
  uint64_t sequence = 0;        ///< global sequence number: never batch place or rank
};

/// One answer.
struct Generation {
  std::vector<int64_t> tokens;  ///< new ones, the end token included
  std::vector<float> logprobs;  ///< of each, temperature 1
  bool ended = false;           ///< by the end token, not by length
};

/// Called on the rank that owns the request for each token, in order; on a GPU some tokens
/// after it was drawn.
using TokenSink = std::function<void(size_t request, int64_t token)>;

/// Answers of `requests`, in order. Each rank brings its own requests, of any number
/// (also none), `batch` of them at a time. An answer depends on weights, prompt,
/// sequence number and settings alone.
///
/// Collective over the gather ranks while the store is not pinned: all of them run the
/// same number of forwards, until the last rank's last answer has ended. While the store
/// is pinned or replicated no rank waits for another. With `steps`, on a GPU and while no
/// read needs another rank, tokens are drawn by recorded steps (decode_step.h): the host
/// looks at them one chunk late, and a batch goes on until its last answer has ended.
///
/// UsageError naming the lengths if a prompt and its answer exceed the model's positions;
/// InputError for an empty prompt or a token outside of the vocabulary.
std::vector<Generation> generate(const Decoder& model, Store& store, KvCache& cache,
                                 const std::vector<GenerationRequest>& requests, int64_t batch,
                                 const SamplingSettings& settings, const TokenSink& sink = {},
                                 DecodeSteps* steps = nullptr);

/// Forward passes that this thread's last generate() ran (prefill included); for tests
/// of the lockstep rule.
int64_t last_forward_count();

}  // namespace reknit
