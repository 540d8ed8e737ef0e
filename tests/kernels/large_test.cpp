// Buffers of more than 2^31 elements: what lies behind that is updated, summed and cast like
// the rest. On CPU the memory is only reserved, and a few pages of it are touched.
#include "reknit/kernels/update.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

namespace reknit::ops {
namespace {

constexpr int64_t kCount = (int64_t{1} << 31) + 5;
constexpr int64_t kEdge = 3;

/// Zeros that take no memory until they are written.
at::Tensor sparse_zeros(at::ScalarType dtype) {
  const size_t bytes = static_cast<size_t>(kCount) * c10::elementSize(dtype);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return {};
  }
  return at::from_blob(
      memory, {kCount}, [bytes](void* p) { ::munmap(p, bytes); }, at::TensorOptions(dtype));
}

std::vector<UpdateRange> edges() {
  return {{0, kEdge, 0.0, 0.5}, {kCount - kEdge, kCount, 0.0, 0.5}};
}

/// Updates both ends of `shard` and reads them.
void expect_both_ends_move(const FlatShard& shard) {
  const at::Tensor one = at::ones({1}, shard.master.options());
  for (const auto& range : edges()) {
    shard.grad.narrow(0, range.begin, kEdge).fill_(2.0);
  }
  sgd_update(shard, one, {}, edges());
  for (const auto& range : edges()) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      EXPECT_EQ(shard.master[i].item<float>(), -1.0f) << i;
      EXPECT_EQ(shard.weight[i].item<float>(), -1.0f) << i;
    }
  }
  EXPECT_EQ(shard.master[kEdge].item<float>(), 0.0f);
  EXPECT_EQ(shard.master[kCount - kEdge - 1].item<float>(), 0.0f);
  const at::Tensor sums = sum_squares(shard.grad, edges());
  EXPECT_EQ(sums[0].item<double>(), 4.0 * kEdge);
  EXPECT_EQ(sums[1].item<double>(), 4.0 * kEdge);
  // One range from end to end begins below 2^31 and ends above.
  const int64_t middle = kCount - 1000;
  EXPECT_EQ(sum_squares(shard.grad, {{middle, kCount}}).item<double>(), 4.0 * kEdge);
  adam_update(shard, one, {}, {{middle, kCount, 0.0, 1.0}});
  EXPECT_NEAR(shard.master[kCount - 1].item<float>(), -2.0f, 1e-5);
  EXPECT_NE(shard.states[1][kCount - 1].item<float>(), 0.0f);
}

TEST(Large, OptimizersCountBeyond31BitsOnCpu) {
  FlatShard shard;
  shard.master = sparse_zeros(at::kFloat);
  shard.grad = sparse_zeros(at::kFloat);
  shard.weight = sparse_zeros(at::kBFloat16);
  shard.states = {sparse_zeros(at::kFloat), sparse_zeros(at::kFloat)};
  for (const at::Tensor& x :
       {shard.master, shard.grad, shard.weight, shard.states[0], shard.states[1]}) {
    if (!x.defined()) {
      GTEST_SKIP() << "this system reserves no memory that it does not have";
    }
  }
  expect_both_ends_move(shard);
}

TEST(Large, OptimizersCountBeyond31BitsOnCuda) {
  if (!at::globalContext().hasCUDA()) {
    GTEST_SKIP() << "no CUDA device";
  }
  const auto fp32 = at::device(c10::Device(c10::kCUDA, 0)).dtype(at::kFloat);
  FlatShard shard;
  try {
    shard.master = at::zeros({kCount}, fp32);
    shard.grad = at::zeros({kCount}, fp32);
    shard.weight = at::zeros({kCount}, fp32.dtype(at::kBFloat16));
    shard.states = {at::zeros({kCount}, fp32), at::zeros({kCount}, fp32)};
  } catch (const c10::OutOfMemoryError&) {
    GTEST_SKIP() << "needs 40 GB of device memory";
  }
  expect_both_ends_move(shard);
  EXPECT_EQ(sum_squares(shard.grad).item<double>(), 8.0 * kEdge);
  accumulate(shard.grad, shard.weight);
  EXPECT_NEAR(shard.grad[kCount - 1].item<float>(), 0.0f, 1e-2);  // 2 and the weight, -2
  EXPECT_EQ(shard.grad[0].item<float>(), 1.0f);
}

}  // namespace
}  // namespace reknit::ops
