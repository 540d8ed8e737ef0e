// The two small state machines of a group: weights and gradients.
#pragma once

#include "reknit/base/stream.h"
#include "reknit/store/param_ref.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reknit {

/// Where the weights are, and who owns the memory.
enum class WeightState {
  kSharded,    ///< only the shard exists; no slot is held
  kGathering,  ///< a slot is held by a pending collective; nobody can reach it
  kFull,       ///< the store holds the slot (or the resident or pinned copy); readers lease it
};

/// Where the gradient of the current pass is, and who owns the memory.
enum class GradientState {
  kNone,          ///< no slot; the gradient shard holds the sum of earlier micro-batches
  kAccumulating,  ///< the store holds a gradient slot, leased or waiting for its next use
  kReducing,      ///< the slot is held by a pending reduction
  kReduced,       ///< reduced across all ranks: the shard is final, ready for the update
};

const char* to_string(WeightState state);
const char* to_string(GradientState state);

/// State, version and readers of one group. Transitions are the only writers; each
/// throws StateError naming group, state, version, phase and rank when it is not legal.
///
///   weights    Sharded -> Gathering -> Full -> Sharded        (lease, release inside Full)
///   gradients  None -> Accumulating -> Reducing -> None       (each micro-batch)
///              None -> Reduced -> None                        (boundary, update)
class GroupState final : public ReadGuard {
 public:
  explicit GroupState(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  WeightState weights() const { return weights_; }
  GradientState gradients() const { return gradients_; }
  uint64_t version() const { return version_; }
  int readers() const { return static_cast<int>(leases_.size()); }

  void begin_gather(Phase phase);
  /// The full copy is of the version that was current when its gather began. `pinned`: it
  /// stays until unpin.
  void finish_gather(bool pinned = false);
  /// A full copy that is written in place and always there (replicated weights).
  void make_resident();
  uint64_t lease(Phase phase);
  /// Ends a lease; true if it was the last reader.
  bool release(uint64_t lease) noexcept;
  /// Full -> Sharded; there must be no readers.
  void shard();
  /// The shard changed: every full copy that is not resident is now stale.
  void raise_version();

  void open_gradients();
  void close_gradients();
  void begin_reduce();
  void finish_reduce();
  void mark_reduced();
  void consume_gradients();

  /// Every later transition or read throws `reason`. The first reason wins.
  void poison(const std::string& reason) noexcept;
  /// Throws that reason if there is one.
  void require_sound() const;

  void require_readable(const std::string& parameter, uint64_t version,
                        uint64_t lease) const override;

 private:
  void require_state(bool ok, const char* action) const;
  void record(const char* state, const Stream& stream) const;
  std::string describe() const;

  std::string name_;
  WeightState weights_ = WeightState::kSharded;
  GradientState gradients_ = GradientState::kNone;
  bool resident_ = false;
  bool gradient_leased_ = false;
  uint64_t version_ = 1;       ///< of the shard
  uint64_t full_version_ = 0;  ///< of the full copy, while Gathering or Full
  uint64_t next_lease_ = 1;
  std::vector<uint64_t> leases_;
  Phase phase_ = Phase::kForward;
  std::string poison_;
};

}  // namespace reknit
