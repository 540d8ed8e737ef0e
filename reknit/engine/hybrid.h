// The switch between training and generation: the one place that knows both phases.
#pragma once

#include "reknit/engine/generate.h"

namespace reknit {

enum class GatherMode {
  kPinned,     ///< every group gathered once per phase and kept at its address
  kLayerwise,  ///< gathered group by group for each token, nothing kept
};

struct HybridSettings {
  GatherMode mode = GatherMode::kPinned;
  /// Gives cache and pinned memory back after each phase.
  bool release_memory = false;
  /// On a GPU, decode by recorded steps where the weights are here (generate.h).
  bool record_steps = true;
};

class Hybrid;

/// A generation phase. While it lives the model is read-only: an update, a swap, a write and an
/// edit throw. Its end is local; the shards are bit for bit what they were.
class GenerateLease {
 public:
  GenerateLease(GenerateLease&& other) noexcept : hybrid_(std::exchange(other.hybrid_, nullptr)) {}
  ~GenerateLease();

  /// See generate() in generate.h.
  std::vector<Generation> generate(const std::vector<GenerationRequest>& requests, int64_t batch,
                                   const SamplingSettings& settings, const TokenSink& sink = {});

 private:
  friend class Hybrid;
  explicit GenerateLease(Hybrid* hybrid) : hybrid_(hybrid) {}
  Hybrid* hybrid_;
};

/// Binds a model, its store and its cache. They outlive it.
class Hybrid {
 public:
  Hybrid(const Decoder& model, Store& store, HybridSettings settings);

  /// Collective over the shard ranks. One lease at a time.
  [[nodiscard]] GenerateLease enter_generation();

  /// Host seconds that the last phase took to gather every group, where it pins them.
  double gather_seconds() const { return gather_seconds_; }
  int64_t cache_bytes() const { return cache_.bytes(); }

 private:
  friend class GenerateLease;
  /// Local; a failure aborts the communicator, since nobody can be told.
  void leave() noexcept;

  const Decoder& model_;
  Store& store_;
  HybridSettings settings_;
  KvCache cache_;
  DecodeSteps steps_;
  double gather_seconds_ = 0.0;
};

}  // namespace reknit
