#include "reknit/store/slot_pool.h"

#include "reknit/base/error.h"
#include "reknit/base/mutant.h"

#include <algorithm>

namespace reknit {

Slot::Slot(Slot&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      class_bytes_(other.class_bytes_),
      index_(other.index_),
      bytes_(std::move(other.bytes_)) {}

Slot& Slot::operator=(Slot&& other) noexcept {
  if (this != &other) {
    reset();
    pool_ = std::exchange(other.pool_, nullptr);
    class_bytes_ = other.class_bytes_;
    index_ = other.index_;
    bytes_ = std::move(other.bytes_);
  }
  return *this;
}

void Slot::order_after_release(const Stream& stream) const {
  stream.wait(pool_->classes_.at(class_bytes_).entries[index_]->released);
}

void Slot::release(const Stream& last_use) {
  REKNIT_INVARIANT(pool_ != nullptr, "a slot that nobody holds was released");
  if (pool_->poison_released_) {
    const StreamScope scope(last_use);
    bytes_.fill_(kPoison);
  }
  if (!REKNIT_MUTANT(forget_release_event)) {
    pool_->classes_.at(class_bytes_).entries[index_]->released.record(last_use);
  }
  reset();
}

void Slot::reset() noexcept {
  if (pool_ == nullptr) {
    return;
  }
  pool_->classes_.at(class_bytes_).entries[index_]->free = true;
  --pool_->in_use_;
  pool_ = nullptr;
  bytes_ = at::Tensor();
}

void SlotPool::require(int64_t bytes, int count) {
  if (bytes > 0) {
    SizeClass& size_class = classes_[class_of(bytes)];
    size_class.wanted = std::max(size_class.wanted, count);
  }
}

void SlotPool::seal() {
  for (auto& [bytes, size_class] : classes_) {
    while (static_cast<int>(size_class.entries.size()) < size_class.wanted) {
      auto entry = std::make_unique<Entry>();
      entry->bytes = allocator_(bytes);
      size_class.entries.push_back(std::move(entry));
    }
  }
}

std::optional<Slot> SlotPool::try_acquire(int64_t bytes) {
  const auto found = classes_.find(class_of(bytes));
  REKNIT_INVARIANT(found != classes_.end(), "a slot of ", bytes, " bytes was never required");
  auto& entries = found->second.entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i]->free) {
      entries[i]->free = false;
      ++in_use_;
      Slot slot;
      slot.pool_ = this;
      slot.class_bytes_ = found->first;
      slot.index_ = i;
      slot.bytes_ = entries[i]->bytes;
      return slot;
    }
  }
  return std::nullopt;
}

bool SlotPool::has_free(int64_t bytes) const {
  const auto found = classes_.find(class_of(bytes));
  return found != classes_.end() &&
         std::any_of(found->second.entries.begin(), found->second.entries.end(),
                     [](const auto& entry) { return entry->free; });
}

int64_t SlotPool::total_bytes() const {
  int64_t total = 0;
  for (const auto& [bytes, size_class] : classes_) {
    total += bytes * static_cast<int64_t>(size_class.entries.size());
  }
  return total;
}

}  // namespace reknit
