// The read side of the store: what a model needs to know of sharded parameters.
//
// A group's parameters are reached through two leases, both move-only:
//   Full       the group is gathered; every parameter is a view into its slot
//   Gradients  one gradient slot is open; backward adds into its views
// A model asks a ParamSource for them, group by group, and never sees ranks, shards
// or streams. Everything is queued on the rank's compute stream.
#pragma once

#include "reknit/base/param_view.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace reknit {

using GroupId = int;

enum class Phase { kForward, kBackward, kGenerate, kSave };
const char* to_string(Phase phase);

/// A parameter as the model declares it.
struct ParamSpec {
  std::string name;            ///< unique in its model: "decoder.layers.3.fc1.weight"
  std::vector<int64_t> shape;  ///< any size, also empty or smaller than the world
  bool trainable = true;
  bool decay = true;                         ///< weight decay applies (not for norms, biases)
  std::optional<at::ScalarType> dtype = {};  ///< its own dtype; default: the store's
};

/// The parameters that are gathered, used and released together.
struct GroupSpec {
  std::string name;  ///< "embed", "block 3", "head"
  std::vector<ParamSpec> params;
};

/// What a lease reports back to. Local and noexcept: no collective starts here.
class LeaseOwner {
 public:
  virtual ~LeaseOwner() = default;
  virtual void release_full(GroupId group, uint64_t lease) noexcept = 0;
  /// Gradients were dropped without reduce(): poisons the group.
  virtual void drop_gradients(GroupId group) noexcept = 0;
};

/// Read lease on a gathered group, in the order of its GroupSpec. While it lives the
/// slot stays; views that outlive it throw at their next read. Must not outlive the store.
class Full {
 public:
  Full(LeaseOwner* owner, GroupId group, uint64_t lease, std::vector<ParamView> views)
      : owner_(owner), group_(group), lease_(lease), views_(std::move(views)) {}
  Full(Full&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)),
        group_(other.group_),
        lease_(other.lease_),
        views_(std::move(other.views_)) {}
  Full& operator=(Full&&) = delete;
  ~Full() {
    if (owner_ != nullptr) {
      owner_->release_full(group_, lease_);
    }
  }

  const ParamView& operator[](size_t param) const { return views_.at(param); }
  GroupId group() const { return group_; }

 private:
  LeaseOwner* owner_;
  GroupId group_;
  uint64_t lease_;
  std::vector<ParamView> views_;
};

/// Write lease on a group's gradient slot (zeroed when first opened in a pass). View i
/// belongs to parameter i; it is undefined where the parameter is frozen. Must be given
/// to ParamSource::reduce; dropping it poisons the group.
class [[nodiscard]] Gradients {
 public:
  Gradients(LeaseOwner* owner, GroupId group, std::vector<at::Tensor> views)
      : owner_(owner), group_(group), views_(std::move(views)) {}
  Gradients(Gradients&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)),
        group_(other.group_),
        views_(std::move(other.views_)) {}
  Gradients& operator=(Gradients&&) = delete;
  ~Gradients() {
    if (owner_ != nullptr) {
      owner_->drop_gradients(group_);
    }
  }

  const at::Tensor& operator[](size_t param) const { return views_.at(param); }
  GroupId group() const { return group_; }
  /// Ends the lease in an orderly way; called by ParamSource::reduce only.
  void close() noexcept {
    owner_ = nullptr;
    views_.clear();
  }

 private:
  LeaseOwner* owner_;
  GroupId group_;
  std::vector<at::Tensor> views_;
};

/// Where a model gets its parameters from, in whatever way they are placed.
class ParamSource {
 public:
  virtual ~ParamSource() = default;

  /// Waits for the group's gather (starting it if nobody has) and leases it; starts
  /// the gather of the groups that are expected next. Collective over the shard ranks.
  virtual Full full(GroupId group, Phase phase) = 0;

  /// Opens the gradient slot of the group, or continues it: a group that is used twice
  /// in a pass (tied embeddings) is opened twice and accumulates.
  virtual Gradients gradients(GroupId group) = 0;

  /// Ends one use. `last` (the default) starts the reduction into the gradient shard;
  /// with last = false the slot stays open for the group's next use in this pass.
  /// Collective over the shard ranks when `last`.
  virtual void reduce(Gradients&& gradients, bool last = true) = 0;
};

}  // namespace reknit
