#include "reknit/engine/hybrid.h"
#include "reknit/base/error_text.h"

#include <chrono>

namespace reknit {

Hybrid::Hybrid(const Decoder& model, Store& store, HybridSettings settings)
    : model_(model),
      store_(store),
      settings_(settings),
      cache_(model.spec(), store.settings().dtype, this_rank().device) {}

GenerateLease Hybrid::enter_generation() {
  store_.begin_generation();
  GenerateLease lease(this);
  const auto start = std::chrono::steady_clock::now();
  if (settings_.mode == GatherMode::kPinned) {
    store_.pin();
    store_.comms().world->synchronize(this_rank().compute);
  }
  gather_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return lease;
}

void Hybrid::leave() noexcept {
  store_.end_generation();
  try {
    if (store_.pinned()) {
      store_.unpin();
    }
    if (settings_.release_memory) {
      steps_.clear();
      store_.release_pinned_memory();
      cache_.release();
    }
  } catch (const std::exception& error) {  // a poisoned group or a device that has failed
    store_.comms().world->abort(first_line(error));
  }
}

GenerateLease::~GenerateLease() {
  if (hybrid_ != nullptr) {
    hybrid_->leave();
  }
}

std::vector<Generation> GenerateLease::generate(const std::vector<GenerationRequest>& requests,
                                                int64_t batch, const SamplingSettings& settings,
                                                const TokenSink& sink) {
  return reknit::generate(hybrid_->model_, hybrid_->store_, hybrid_->cache_, requests, batch,
                          settings, sink,
                          hybrid_->settings_.record_steps ? &hybrid_->steps_ : nullptr);
}

}  // namespace reknit
