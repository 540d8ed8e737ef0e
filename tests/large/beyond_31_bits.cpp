// A parameter of more than 2^31 elements, gathered and reduced for real. Needs tens of GB, so it
// is an executable of its own that ctest does not run; docs/store.md has the command.
#include "reknit/store/store.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>

namespace reknit {
namespace {

using namespace testing_support;

constexpr int kWorld = 2;
constexpr int64_t kRows = (int64_t{1} << 15) + 3;
constexpr int64_t kColumns = int64_t{1} << 16;
constexpr int64_t kNumel = kRows * kColumns;  // 2^31 + 3 * 2^16
constexpr int64_t kChunk = int64_t{1} << 24;
constexpr std::chrono::minutes kPatience{20};

/// What element i holds: whole numbers of -41 to 41, which bf16 holds, and so it does three
/// times of them. 83 is no divisor of a power of two: a place that is off by one is another value.
at::Tensor value_of(const at::Tensor& places) {
  return at::sub(at::remainder(places, 83), 41).to(at::kFloat);
}

at::Tensor places(int64_t begin, int64_t end) {
  return at::arange(begin, end, at::TensorOptions(at::kLong).device(test_device()));
}

/// Elements of [begin, end) to look at, both sides of 2^30 and 2^31 and the ends among them.
at::Tensor samples(int64_t begin, int64_t end) {
  std::set<int64_t> chosen;
  for (const int64_t edge : {begin, int64_t{1} << 30, kNumel / 2, int64_t{1} << 31, end}) {
    for (int64_t i = edge - 3; i < edge + 3; ++i) {
      chosen.insert(i);
    }
  }
  for (int64_t i = begin; i < end; i += 4099) {
    chosen.insert(i);
  }
  std::vector<int64_t> inside;
  for (const int64_t i : chosen) {
    if (i >= begin && i < end) {
      inside.push_back(i);
    }
  }
  return at::tensor(inside, at::kLong).to(test_device());
}

struct Rank {
  SlotPool pool{rank_memory, /*poison_released=*/false};
  Store store;

  Rank(std::shared_ptr<Communicator> comm, bool training)
      : store({.name = "large",
               .dtype = at::kBFloat16,
               .placement = {3, kWorld},
               .prefetch_depth = 0,
               .training = training,
               .allocator = {}},
              StoreComms::over(std::move(comm), kWorld), pool) {
    store.add({"large", {{.name = "table", .shape = {kRows, kColumns}}}});
    store.seal();
    pool.seal();
    for (int64_t begin = 0; begin < kNumel; begin += kChunk) {
      const int64_t end = std::min(begin + kChunk, kNumel);
      store.write(0, 0, begin, value_of(places(begin, end)));
    }
  }
};

TEST(Beyond31Bits, AParameterIsGathered) {
  const auto body = [](std::shared_ptr<Communicator> comm) {
    Rank rank(std::move(comm), false);
    {
      const Full full = rank.store.full(0, Phase::kForward);
      const at::Tensor values = full[0].read();
      ASSERT_EQ(values.numel(), kNumel);
      const at::Tensor at = samples(0, kNumel);
      EXPECT_TRUE(at::equal(values.view({-1}).index_select(0, at).to(at::kFloat), value_of(at)));
    }
    rank.store.finish_pass();
  };
  on_ranks(kWorld, body, kPatience);
}

TEST(Beyond31Bits, AGradientIsReduced) {
  const auto body = [](std::shared_ptr<Communicator> comm) {
    const double factor = comm->rank() + 1;  // 1 + 2 times the value in all
    Rank rank(std::move(comm), true);
    Gradients gradients = rank.store.gradients(0);
    const at::Tensor whole = gradients[0].view({-1});
    for (int64_t begin = 0; begin < kNumel; begin += kChunk) {
      const int64_t end = std::min(begin + kChunk, kNumel);
      whole.slice(0, begin, end).copy_(value_of(places(begin, end)).mul_(factor));
    }
    rank.store.reduce(std::move(gradients));
    rank.store.finish_pass();
    rank.store.finish_gradients();
    for (const OptimizerShard& shard : rank.store.begin_update()) {
      for (const ShardSlice& slice : shard.slices) {
        const at::Tensor at = samples(slice.param_offset, slice.param_offset + slice.extent.size());
        const at::Tensor found =
            shard.grad.index_select(0, at::add(at, slice.extent.begin - slice.param_offset));
        EXPECT_TRUE(at::equal(found, at::mul(value_of(at), 3)));
        EXPECT_GT(at.numel(), 200'000);
      }
    }
    rank.store.drop_step();
  };
  on_ranks(kWorld, body, kPatience);
}

}  // namespace
}  // namespace reknit
