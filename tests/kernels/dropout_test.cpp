// Dropout: the share that is dropped, what a mask depends on, and its gradient in attention.
#include "reknit/kernels/dropout.h"
#include "reknit/kernels/attention.h"

#include "tests/kernels/cases.h"

#include <cmath>

namespace reknit::ops {
namespace {

at::Tensor keys_of(uint64_t step, uint64_t sequence, int64_t length, c10::Device device) {
  std::vector<int64_t> keys(length);
  dropout_keys(5, step, sequence, keys);
  return at::tensor(keys, at::kLong).to(device);
}

using DropoutCases = OnCases;

TEST_P(DropoutCases, DropsItsShareScalesTheRestAndIsItsOwnBackward) {
  const c10::Device device = GetParam().device;
  const at::Tensor x = at::ones({200, 103}, options());
  const Dropout dropout_tenth{0.1, 3, keys_of(0, 0, 200, device)};
  const at::Tensor y = dropout(x, dropout_tenth);
  const double kept = y.gt(0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, 0.9, 0.008);  // four standard deviations
  EXPECT_TRUE(at::equal(y.gt(0).to(y.scalar_type()) * x.mul(1.0 / 0.9), y));
  const at::Tensor g = normal({200, 103});
  EXPECT_TRUE(at::equal(dropout(g, dropout_tenth).ne(0), y.gt(0).logical_and(g.ne(0))));
  EXPECT_TRUE(x.is_same(dropout(x, {0.0, 3, dropout_tenth.keys})));
  EXPECT_TRUE(x.is_same(dropout(x, {0.1, 3, {}})));
}

TEST_P(DropoutCases, AMaskDependsOnTokenAndPlaceAloneNotOnTheBatch) {
  const c10::Device device = GetParam().device;
  const at::Tensor a = keys_of(2, 7, 5, device);
  const at::Tensor b = keys_of(2, 8, 9, device);
  const auto mask = [&](const at::Tensor& keys, uint64_t site) {
    return dropout(at::ones({keys.size(0), 64}, options()), {0.5, site, keys});
  };
  const at::Tensor together = mask(at::cat({b, a}), 1);
  EXPECT_TRUE(at::equal(together.narrow(0, 9, 5), mask(a, 1)));
  EXPECT_FALSE(at::equal(mask(a, 1), mask(a, 2)));
  EXPECT_FALSE(at::equal(mask(a, 1), mask(keys_of(3, 7, 5, device), 1)));
  EXPECT_FALSE(at::equal(mask(a, 1), mask(keys_of(2, 6, 5, device), 1)));
  EXPECT_FALSE(at::equal(mask(a.narrow(0, 0, 1), 1), mask(a.narrow(0, 1, 1), 1)));
}

TEST_P(DropoutCases, CpuAndCudaDropTheSame) {
  const at::Tensor keys = keys_of(1, 2, 6, c10::kCPU);
  const at::Tensor x = at::ones({6, 37}, at::kFloat);
  EXPECT_TRUE(
      at::equal(dropout(x, {0.3, 4, keys}).gt(0),
                dropout(x.to(options()), {0.3, 4, keys.to(GetParam().device)}).gt(0).cpu()));
}

INSTANTIATE_TEST_SUITE_P(All, DropoutCases, testing::ValuesIn(cases()), case_name);

using DropoutDevices = OnDevices;

/// The probabilities of the definition, masked, and the gradient of sum(out * weight).
struct Masked {
  at::Tensor out, d_q, d_k, d_v;
};

Masked masked_attention(const at::Tensor& qkv, const at::Tensor& weight, const at::Tensor& keys,
                        const Dropout& dropout, int64_t heads, int64_t dim, double scale) {
  const int64_t n = qkv.size(0);
  const at::Tensor all = qkv.view({n, 3, heads, dim}).permute({1, 2, 0, 3});
  const at::Tensor q = all[0], k = all[1], v = all[2],
                   w = weight.view({n, heads, dim}).transpose(0, 1);
  const at::Tensor future = at::ones({n, n}, qkv.options().dtype(at::kBool)).triu(1);
  const at::Tensor p =
      at::softmax((at::matmul(q, k.transpose(1, 2)) * scale).masked_fill(future, -INFINITY), -1);
  const at::Tensor mask = at::ones({heads, n, n}, qkv.options());
  drop_scores(mask, dropout, keys.unsqueeze(0), 0, heads);
  const at::Tensor d_p = at::matmul(w, v.transpose(1, 2)) * mask;
  const at::Tensor d_s = p * (d_p - (d_p * p).sum(-1, true)) * scale;
  const auto rows = [&](const at::Tensor& x) {
    return x.transpose(0, 1).reshape({n, heads * dim});
  };
  return {rows(at::matmul(p * mask, v)), rows(at::matmul(d_s, k)),
          rows(at::matmul(d_s.transpose(1, 2), q)),
          rows(at::matmul((p * mask).transpose(1, 2), w))};
}

TEST_P(DropoutDevices, AttentionDropsProbabilitiesForwardAndBackward) {
  const int64_t heads = 3, dim = 8;
  const std::vector<int64_t> lengths = {5, 0, 140, 1};  // more rows than are worked on at once
  const Packing packing = Packing::of(lengths, GetParam());
  const auto options = at::device(GetParam()).dtype(at::kFloat);
  const at::Tensor qkv = at::randn({146, 3 * heads * dim}, at::kFloat).to(options);
  const at::Tensor weight = at::randn({146, heads * dim}, at::kFloat).to(options);
  const at::Tensor keys = keys_of(0, 0, 146, GetParam());
  const Dropout dropout{0.25, 9, keys};
  const HeadLayout layout{heads, heads, dim, false};
  const AttentionOut out = attention(qkv, layout, packing, 0.3, {}, dropout);
  const at::Tensor d_qkv = attention_backward(weight, qkv, out, layout, packing, 0.3, {}, dropout);
  int64_t first = 0;
  for (const int64_t length : lengths) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, length).contiguous(); };
    if (length > 0) {
      const Masked expected =
          masked_attention(part(qkv), part(weight), part(keys), dropout, heads, dim, 0.3);
      expect_close(part(out.out), expected.out, 1e-5);
      expect_close(part(d_qkv), at::cat({expected.d_q, expected.d_k, expected.d_v}, 1), 1e-5);
    }
    first += length;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DropoutDevices, testing::ValuesIn(devices()), device_name);

}  // namespace
}  // namespace reknit::ops
