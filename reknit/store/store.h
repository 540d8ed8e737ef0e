// The sharded store: every parameter of one model, wherever its placement puts it.
//
// Call order: add* order? seal, then any interleaving of
//   pass     (full | gradients, reduce)* finish_pass
//   update   finish_gradients begin_update end_update
//   generate begin_generation pin .. unpin end_generation
//   content  write | edit .. commit | read_full | swap_masters
// Every call is collective over the shard ranks, finish_gradients and Edit::commit over the
// world: all of them make the same calls in the same order. Local are write, shards,
// frozen_shards, the two ends of a generation, unpin, release_pinned_memory and the plain
// getters. A collective that fails poisons the store: every later use throws its reason.
// One thread, the rank's, uses a store. Memory is reserved in seal; slots come from the
// rank's pool.
#pragma once

#include "reknit/base/error_text.h"
#include "reknit/base/rank.h"
#include "reknit/store/group_state.h"
#include "reknit/store/layout.h"
#include "reknit/store/placement.h"
#include "reknit/store/slot_pool.h"

#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace reknit {

struct StoreSettings {
  std::string name = "model";         ///< appears in errors: "actor"
  at::ScalarType dtype = at::kFloat;  ///< of weights
  Placement placement;
  int64_t persistence_threshold = 0;  ///< elements; see LayoutRules
  int64_t persistence_limit = INT64_MAX;
  int prefetch_depth = 1;  ///< groups gathered ahead; 0: none
  bool overlap = true;     ///< false: every gather and reduction is waited for at once
  /// Of gradients while they are summed over ranks. Empty: the weights' where a group is
  /// reduced as it appears (ZeRO 2 and 3), fp32 for what is summed at the boundary.
  std::optional<at::ScalarType> reduce_dtype;
  bool training = true;           ///< false: no gradients, no masters
  SlotPool::Allocator allocator;  ///< of shards; empty: plain memory on the rank's device
};

/// A parameter's part of an optimizer shard.
struct ShardSlice {
  const ParamSpec* param = nullptr;
  Extent extent;             ///< elements of the shard
  int64_t param_offset = 0;  ///< of extent.begin inside the flattened parameter
};

/// What the optimizer works on: this rank's slice of one trainable segment. Tensors are
/// flat, equal in length, owned by the store; `weight` may be the same memory as `master`.
struct OptimizerShard {
  at::Tensor master;  ///< fp32
  at::Tensor grad;    ///< fp32, summed over all ranks
  at::Tensor weight;  ///< model dtype
  std::vector<ShardSlice> slices;
};

class Store;

/// The only writable view of a parameter: a full copy on every rank. Collective over the world.
class Edit {
 public:
  Edit(Edit&&) noexcept;
  ~Edit();
  at::Tensor& value() { return value_; }
  /// Every rank takes the copy of rank `owner`; shards, master and version follow. An edit
  /// that is dropped instead poisons the group with a sentence naming the parameter.
  void commit() &&;

 private:
  friend class Store;
  Edit(Store* store, GroupId group, int param, int owner, at::Tensor value)
      : store_(store), group_(group), param_(param), owner_(owner), value_(std::move(value)) {}
  Store* store_;
  GroupId group_;
  int param_;
  int owner_;
  at::Tensor value_;
};

class Store final : public ParamSource, private LeaseOwner {
 public:
  Store(StoreSettings settings, StoreComms comms, SlotPool& pool);
  ~Store() override;

  GroupId add(GroupSpec spec);
  /// The order in which a forward opens groups (default: as added). A hint for the
  /// prefetch; a group that appears twice is kept from its first to its last use in a pass.
  void set_order(std::vector<GroupId> forward_order);
  /// Lays out, allocates shards (zero) and declares the slots this store needs; the pool
  /// is sealed by the caller once all stores of the rank have declared theirs.
  void seal();

  Full full(GroupId group, Phase phase) override;
  Gradients gradients(GroupId group) override;
  void reduce(Gradients&& gradients, bool last = true) override;

  /// Ends a pass: drains prefetched groups that nobody used, completes reductions,
  /// releases groups that were kept. Leases must have ended.
  void finish_pass();

  /// The accumulation boundary, collective over the world: sums gradient shards over all ranks that
  /// have not been summed yet. Afterwards every trainable group is Reduced.
  void finish_gradients();
  /// Forgets gradients (after a skipped step, or pending ones before a load).
  void drop_step();
  /// This rank's optimizer shards, in a fixed order; valid until end_update.
  std::vector<OptimizerShard> begin_update();
  /// Masters and weights were written: clears the gradients, brings replicated weights up
  /// to date and raises the versions.
  void end_update();
  /// The same shards outside of an update, for checkpoints: `grad` is undefined.
  std::vector<OptimizerShard> shards();
  /// This rank's share (one of shard_size) of every frozen segment: `weight` and slices,
  /// the other tensors are undefined. For checkpoints.
  std::vector<OptimizerShard> frozen_shards();
  /// True where gradients have been reduced that no update or drop_step has used up.
  bool has_gradients() const { return has_gradients_; }
  /// Exchanges the masters with `values` (fp32, one for each of shards(), as long as it)
  /// and makes the weights anew from them: done twice, everything is what it was, bit for
  /// bit. Between passes, not while pinned.
  void swap_masters(std::vector<at::Tensor>& values);

  /// Until end_generation the weights are read-only: begin_update, swap_masters, write and
  /// edit throw. Local.
  void begin_generation();
  void end_generation() noexcept { generating_ = false; }

  /// Gathers every group once and keeps it, at the same addresses each time. Until unpin,
  /// reads need no communication and updates throw as in generation.
  void pin();
  void unpin();
  bool pinned() const { return pinned_; }
  /// True where no read needs another rank: pinned, or everything is replicated.
  bool reads_are_local() const;
  /// Gives the memory of the pinned copies back (they are unpinned).
  void release_pinned_memory();

  /// Copies the part of `values` (flat, any float dtype) that this rank stores:
  /// elements [offset, offset + numel) of the parameter. Local; raises no version: for
  /// loading, between passes, on all ranks alike. Weights get the rounded values, masters
  /// the values themselves.
  void write(GroupId group, int param, int64_t offset, const at::Tensor& values);
  /// Starts an edit of one parameter; see Edit.
  Edit edit(GroupId group, int param, int owner);
  /// A copy of the whole parameter in the model dtype.
  at::Tensor read_full(GroupId group, int param);

  int num_groups() const { return static_cast<int>(groups_.size()); }
  const GroupSpec& spec(GroupId group) const { return groups_.at(group)->spec; }
  const GroupLayout& layout(GroupId group) const { return groups_.at(group)->layout; }
  const GroupState& state(GroupId group) const { return *groups_.at(group)->state; }
  const StoreSettings& settings() const { return settings_; }
  const StoreComms& comms() const { return comms_; }
  int shard_index() const { return comms_.reduce->rank(); }
  /// Bytes of shards, masters, gradients and pinned copies of this rank (slots apart).
  int64_t shard_bytes() const;

 private:
  friend class Edit;

  struct Segment {
    at::Tensor weight;     ///< flat, model dtype: the shard, or all of it where replicated
    at::Tensor master;     ///< fp32, the optimizer shard; a view of weight where that is fp32
    at::Tensor grad;       ///< fp32, the gradient shard
    at::Tensor secondary;  ///< flat, model dtype: this rank's part of the second copy
    bool resident = false;
    int64_t slot_offset = -1;      ///< bytes, of a gathered segment
    int64_t gradient_offset = -1;  ///< bytes, of a trainable segment
    int64_t wire_offset = -1;      ///< bytes, of one that is reduced in another dtype
  };
  struct Group {
    GroupSpec spec;
    GroupLayout layout;
    std::shared_ptr<GroupState> state;
    std::vector<Segment> segments;
    int64_t slot_bytes = 0;          ///< 0: everything is resident
    int64_t gradient_bytes = 0;      ///< 0: nothing is trainable
    int64_t wire_bytes = 0;          ///< 0: gradients are reduced as they are
    bool keep = false;               ///< appears twice in the order
    uint64_t secondary_version = 0;  ///< of the second copy; 0: none
    std::optional<Pending<Slot>> gathering;
    Slot slot;
    at::Tensor pinned;  ///< uint8 [slot_bytes] while memory for pinning is held
    Slot gradient_slot;
    std::optional<Pending<Slot>> reducing;
  };

  void release_full(GroupId group, uint64_t lease) noexcept override;
  void drop_gradients(GroupId group) noexcept override;
  void poison(Group& group, const std::string& reason) noexcept;
  /// `start` or `wait` of a collective; if it throws, its memory holds nothing that has a name.
  template <class Collective>
  auto or_poison(const Collective& collective) {
    try {
      return collective();
    } catch (const std::exception& error) {
      poison_all(first_line(error));
      throw;
    }
  }
  void poison_all(const std::string& reason) noexcept;
  void require_writable(const char* action) const;

  void allocate(Group& group);
  void require_slots();
  at::Tensor new_buffer(int64_t numel, at::ScalarType dtype) const;

  std::vector<GatherPair> gather_pairs(const Group& group, const at::Tensor& bytes,
                                       bool secondary) const;
  void start_gather(GroupId id, Phase phase);
  void finish_gather(Group& group);
  bool has_secondary(const Group& group) const;
  void refresh_secondary(Group& group);
  void advance_position(GroupId id, bool backwards);
  void prefetch_after(GroupId id, Phase phase);
  void discard_full(Group& group);
  bool discard_unused(int64_t bytes = 0);
  std::optional<Slot> find_slot(int64_t bytes);
  const at::Tensor& gathered_bytes(const Group& group) const;
  at::Tensor param_view(const Group& group, int param) const;

  Slot take_gradient_slot(int64_t bytes);
  void start_reduce(GroupId id);
  void finish_oldest_reduce();
  at::Tensor gradient_view(const Group& group, int segment) const;
  at::Tensor wire_view(const Group& group, const Slot& slot, int segment) const;
  void move_to_wire(Group& group);
  void sum_over_ranks();
  void all_reduce_gradients(Communicator& comm, const std::vector<at::Tensor>& grads);
  void scatter_gradients(const std::vector<at::Tensor>& grads,
                         const std::vector<at::Tensor>& pieces);
  std::vector<OptimizerShard> optimizer_shards(bool with_grad);
  static std::vector<ShardSlice> slices_of(const Group& group, int segment, Extent held);
  void clear_gradients();
  void gather_replicated_weights();
  void publish_masters();

  StoreSettings settings_;
  StoreComms comms_;
  SlotPool& pool_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<GroupId> order_;
  std::optional<int64_t> position_;  ///< place in order_ of the last read of this pass
  bool backwards_ = false;           ///< direction of that read
  std::deque<GroupId> reductions_;
  Event weights_written_;    ///< on the compute stream; gathers are ordered after it
  Event secondary_written_;  ///< the same for second copies
  bool sealed_ = false;
  bool generating_ = false;
  bool pinned_ = false;
  bool updating_ = false;
  bool has_gradients_ = false;
};

}  // namespace reknit
