// Every live byte at the peak of training, counted at the allocator, against the bound
// that design promises.
#include "tests/support/toy_model.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <atomic>

namespace reknit {
namespace {

using namespace testing_support;

/// Counts what goes through torch's CPU allocator, on all threads.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 200); }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = inner_->allocate(bytes);
    const int64_t live = live_ += static_cast<int64_t>(bytes);
    int64_t peak = peak_;
    while (live > peak && !peak_.compare_exchange_weak(peak, live)) {
    }
    auto* block = new Block{std::move(data), bytes, this};
    return {block->data.get(), block, &CountingAllocator::free, c10::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }
  void restart_peak() { peak_ = live_.load(); }

 private:
  struct Block {
    c10::DataPtr data;
    size_t bytes;
    CountingAllocator* owner;
  };
  static void free(void* context) {
    auto* block = static_cast<Block*>(context);
    block->owner->live_ -= static_cast<int64_t>(block->bytes);
    delete block;
  }

  c10::Allocator* inner_;
  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> peak_{0};
};

/// It stays in place: memory may be freed as long as the process lives.
CountingAllocator& counter() {
  static auto* allocator = new CountingAllocator;
  return *allocator;
}

constexpr int kWorld = 4;
constexpr int64_t kBlock = 64 * 128;

// An embedding 20 times as large as each of six blocks.
ToyModel large_embedding() {
  ToyModel model{{{{{20 * kBlock}}}}};
  for (int block = 0; block < 6; ++block) {
    model.groups.push_back({{{kBlock - 128}}, {{128}, true, false}});
  }
  return model;
}

// As toy_pass, but without a temporary: what is left is the store's own memory.
void lean_pass(Store& store) {
  for (GroupId g = 0; g < store.num_groups(); ++g) {
    store.full(g, Phase::kForward)[0].read();
  }
  for (GroupId g = store.num_groups() - 1; g >= 0; --g) {
    const Full weights = store.full(g, Phase::kBackward);
    Gradients grads = store.gradients(g);
    grads[0].add_(weights[0].read(), 0.25);
    store.reduce(std::move(grads));
  }
}

/// Bytes that design allows one rank: slots, shards, moments, and two pieces of the
/// largest gradient where the thread backend sums.
int64_t bound(const ToyModel& model, at::ScalarType dtype, int depth, bool tied) {
  const auto width = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t embedding = 20 * kBlock * width;
  const int64_t block = kBlock * width;
  const int64_t blocks = static_cast<int64_t>(model.groups.size()) - 1;
  const int64_t elements = 20 * kBlock + blocks * kBlock;
  // One embedding is all there is of its class: one weight slot (kept if tied), and one
  // gradient slot; both come from the same class, which holds the larger demand.
  const int64_t slots =
      embedding * (tied ? 2 : 1) + block * std::max(depth + 1, 2) + (embedding + 2 * block);
  const int64_t states = dtype == at::kFloat ? 4 + 4 + 8 : width + 4 + 4 + 8;
  const int64_t staging = 2 * 20 * kBlock * 4 / kWorld;
  return slots + elements * states / kWorld + staging;
}

void expect_within_bound(at::ScalarType dtype, int depth, bool tied) {
  const ToyModel model = large_embedding();
  const int64_t before = counter().live();
  counter().restart_peak();
  on_ranks(kWorld, [&](std::shared_ptr<Communicator> comm) {
    SlotPool pool(rank_memory, false);
    Store store({.name = "toy",
                 .dtype = dtype,
                 .placement = {3, kWorld},
                 .prefetch_depth = depth,
                 .allocator = {}},
                StoreComms::over(comm, kWorld), pool);
    std::vector<GroupId> order;
    for (size_t g = 0; g < model.groups.size(); ++g) {
      order.push_back(store.add(model.spec(g)));
    }
    if (tied) {
      order.push_back(0);
      store.set_order(order);
    }
    store.seal();
    pool.seal();
    TrainerSettings settings;
    settings.lr = 1e-3;
    Trainer trainer(store, settings);
    const int64_t slots = pool.total_bytes();
    for (int step = 0; step < 3; ++step) {
      lean_pass(store);
      lean_pass(store);
      trainer.step();
      EXPECT_EQ(pool.total_bytes(), slots);
      EXPECT_EQ(pool.slots_in_use(), 0);
    }
  });
  const int64_t small_change = 64 * 1024;  // norms, scales, flags
  EXPECT_LE(counter().peak() - before, kWorld * bound(model, dtype, depth, tied) + small_change)
      << "depth " << depth << (tied ? " tied" : "") << " " << dtype;
}

TEST(Memory, ThePeakOfTrainingStaysWithinTheBound) {
  if (test_device().is_cuda()) {
    GTEST_SKIP() << "counts what goes through the CPU allocator";
  }
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int depth : {0, 1, 2, 3}) {
      expect_within_bound(dtype, depth, false);
    }
    expect_within_bound(dtype, 1, true);
  }
}

TEST(Memory, StepsAfterTheFirstLeaveNothingBehind) {
  if (test_device().is_cuda()) {
    GTEST_SKIP() << "counts what goes through the CPU allocator";
  }
  const ToyModel model = large_embedding();
  on_ranks(1, [&](std::shared_ptr<Communicator> comm) {
    SlotPool pool(rank_memory);
    Store store({.name = "toy", .placement = {3, 1}, .allocator = {}}, StoreComms::over(comm, 1),
                pool);
    for (size_t g = 0; g < model.groups.size(); ++g) {
      store.add(model.spec(g));
    }
    store.seal();
    pool.seal();
    TrainerSettings settings;
    settings.lr = 1e-3;
    Trainer trainer(store, settings);
    lean_pass(store);
    trainer.step();
    const int64_t live = counter().live();
    for (int step = 0; step < 5; ++step) {
      lean_pass(store);
      trainer.step();
      EXPECT_EQ(counter().live(), live);
    }
    store.pin();
    store.unpin();
    const int64_t pinned = counter().live();
    store.pin();
    EXPECT_EQ(counter().live(), pinned);
    store.release_pinned_memory();
    EXPECT_EQ(counter().live(), live);
  });
}

}  // namespace
}  // namespace reknit
