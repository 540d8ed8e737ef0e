// Fixed buffers for gathered segments and full gradients, in size classes, shared by
// all stores of a rank.
//
// Call order: (require)* seal (acquire | try_acquire)*. After seal nothing is
// allocated until another require asks for more and seal is called again.
#pragma once

#include "reknit/base/stream.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace reknit {

class SlotPool;

/// What released memory is filled with where that is asked for: NaN in every float type.
constexpr uint8_t kPoison = 0xFF;
#ifdef REKNIT_CHECKED
constexpr bool kPoisonReleased = true;
#else
constexpr bool kPoisonReleased = false;
#endif

/// Exclusive ownership of one buffer; returns to its pool when destroyed.
class Slot {
 public:
  Slot() = default;
  Slot(Slot&& other) noexcept;
  Slot& operator=(Slot&& other) noexcept;
  ~Slot() { reset(); }

  explicit operator bool() const { return pool_ != nullptr; }
  /// The memory, uint8 [class bytes]. What was in it before is undefined.
  const at::Tensor& bytes() const { return bytes_; }
  /// Orders `stream` after the last use of this memory by its previous owner (stream
  /// wait). Must come before the first write.
  void order_after_release(const Stream& stream) const;
  /// Gives the memory back; it may be rewritten after the work now queued on `last_use`.
  void release(const Stream& last_use);

 private:
  friend class SlotPool;
  void reset() noexcept;

  SlotPool* pool_ = nullptr;
  int64_t class_bytes_ = 0;
  size_t index_ = 0;
  at::Tensor bytes_;
};

/// One thread, the rank's, uses a pool; it must outlive its slots.
class SlotPool {
 public:
  using Allocator = std::function<at::Tensor(int64_t bytes)>;  ///< -> uint8 [bytes]

  explicit SlotPool(Allocator allocator, bool poison_released = kPoisonReleased)
      : allocator_(std::move(allocator)), poison_released_(poison_released) {}

  static int64_t class_of(int64_t bytes) { return (bytes + 511) / 512 * 512; }

  /// Declares that `count` slots of `bytes` may be in use at once. Demands of several
  /// stores do not add up: they take turns.
  void require(int64_t bytes, int count);
  /// Allocates what was required and is not there yet.
  void seal();

  /// A free slot of the class of `bytes`, or nothing.
  std::optional<Slot> try_acquire(int64_t bytes);
  bool has_free(int64_t bytes) const;

  int64_t total_bytes() const;
  int64_t slots_in_use() const { return in_use_; }
  bool poison_released() const { return poison_released_; }

 private:
  friend class Slot;
  struct Entry {
    at::Tensor bytes;
    bool free = true;
    Event released;
  };
  struct SizeClass {
    int wanted = 0;
    std::vector<std::unique_ptr<Entry>> entries;
  };

  Allocator allocator_;
  bool poison_released_;
  std::map<int64_t, SizeClass> classes_;
  int64_t in_use_ = 0;
};

}  // namespace reknit
