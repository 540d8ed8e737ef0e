// Packed attention and decode attention against double precision, one token at a time.
#include "reknit/kernels/attention.h"

#include "reknit/base/gpu_arithmetic.h"
#include "tests/kernels/cases.h"

#include <cmath>

namespace reknit::ops {
namespace {

using Attention = OnCases;

struct Shape {
  HeadLayout heads;
  bool alibi;
};

std::vector<Shape> shapes() {
  return {{{2, 2, 64, false}, false},  {{2, 2, 80, true}, true}, {{6, 3, 20, false}, true},
          {{4, 1, 128, false}, false}, {{3, 3, 7, true}, false}, {{5, 5, 33, false}, true}};
}

int64_t row_width(const HeadLayout& heads) {
  return (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim;
}

/// Place of part 0, 1, 2 (q, k, v) of head `head` in a row of qkv.
int64_t place(const HeadLayout& heads, int64_t part, int64_t head) {
  const int64_t first[] = {0, heads.num_heads, heads.num_heads + heads.num_kv_heads};
  return heads.head_dim * (heads.interleaved ? 3 * head + part : first[part] + head);
}

/// One sequence [n, width] fp64 -> [n, A D]: the definition, written out.
at::Tensor attend_fp64(const at::Tensor& qkv, const HeadLayout& heads, double scale,
                       const at::Tensor& slopes) {
  const at::Tensor rows = qkv.contiguous();
  const int64_t length = rows.size(0);
  const int64_t dim = heads.head_dim;
  at::Tensor out = at::zeros({length, heads.num_heads * dim}, at::kDouble);
  const auto at_place = [&](int64_t t, int64_t part, int64_t head) {
    return rows.const_data_ptr<double>() + t * rows.size(1) + place(heads, part, head);
  };
  for (int64_t a = 0; a < heads.num_heads; ++a) {
    const int64_t kv = a / (heads.num_heads / heads.num_kv_heads);
    const double slope = slopes.defined() ? slopes[a].item<double>() : 0.0;
    for (int64_t i = 0; i < length; ++i) {
      std::vector<double> weight(i + 1);
      double total = 0;
      for (int64_t j = 0; j <= i; ++j) {
        double score = slope * static_cast<double>(j - i);
        for (int64_t d = 0; d < dim; ++d) {
          score += scale * at_place(i, 0, a)[d] * at_place(j, 1, kv)[d];
        }
        weight[j] = std::exp(score);
        total += weight[j];
      }
      double* to = out.mutable_data_ptr<double>() + i * out.size(1) + a * dim;
      for (int64_t j = 0; j <= i; ++j) {
        for (int64_t d = 0; d < dim; ++d) {
          to[d] += weight[j] / total * at_place(j, 2, kv)[d];
        }
      }
    }
  }
  return out;
}

at::Tensor attend_packed_fp64(const at::Tensor& qkv, const HeadLayout& heads,
                              const std::vector<int64_t>& lengths, double scale,
                              const at::Tensor& slopes) {
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    parts.push_back(attend_fp64(fp64(qkv).narrow(0, first, length), heads, scale, slopes));
    first += length;
  }
  return at::cat(parts);
}

TEST_P(Attention, MatchesTheDefinitionOnPackedSequences) {
  const std::vector<int64_t> lengths = {3, 0, 1, 150, 9};
  const Packing packing = Packing::of(lengths, GetParam().device);
  for (const Shape& shape : shapes()) {
    const at::Tensor qkv = normal({packing.num_tokens(), row_width(shape.heads)});
    const at::Tensor slopes =
        shape.alibi ? alibi_slopes(shape.heads.num_heads).to(fp32()) : at::Tensor();
    const AttentionOut result = attention(qkv, shape.heads, packing, 0.2, slopes);
    expect_close(result.out, attend_packed_fp64(qkv, shape.heads, lengths, 0.2, slopes), bound());
  }
}

TEST_P(Attention, BackwardMatchesCentralDifferences) {
  const std::vector<int64_t> lengths = {2, 0, 5, 1};
  const Packing packing = Packing::of(lengths, GetParam().device);
  for (const HeadLayout& heads :
       {HeadLayout{2, 2, 5, true}, HeadLayout{4, 2, 3, false}, HeadLayout{2, 2, 8, false}}) {
    const at::Tensor slopes = alibi_slopes(heads.num_heads).to(fp32());
    const at::Tensor qkv = normal({packing.num_tokens(), row_width(heads)});
    const at::Tensor d_out = normal({packing.num_tokens(), heads.num_heads * heads.head_dim});
    const AttentionOut saved = attention(qkv, heads, packing, 0.4, slopes);
    const at::Tensor actual = attention_backward(d_out, qkv, saved, heads, packing, 0.4, slopes);
    const auto f = [&](const at::Tensor& x) {
      return attend_packed_fp64(x, heads, lengths, 0.4, slopes);
    };
    expect_close(actual, central_differences(f, qkv, d_out), bound());
  }
}

TEST_P(Attention, BackwardOfManyBlocksRepeatsItsBitsInAFixedOrder) {
  fix_order_of_gpu_sums(true);
  const HeadLayout heads{4, 4, 64, false};
  const Packing packing = Packing::of({700, 500}, GetParam().device);
  const at::Tensor qkv = normal({1200, row_width(heads)});
  const at::Tensor d_out = normal({1200, 256});
  const AttentionOut saved = attention(qkv, heads, packing, 0.125, {});
  const at::Tensor first = attention_backward(d_out, qkv, saved, heads, packing, 0.125, {});
  for (int again = 0; again < 5; ++again) {
    EXPECT_TRUE(at::equal(first, attention_backward(d_out, qkv, saved, heads, packing, 0.125, {})));
  }
  fix_order_of_gpu_sums(false);
}

TEST_P(Attention, LongSequencesGiveWhatTheCpuGivesInFp32) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{300, 300}, {31, 300, 257}}) {
    const Packing packing = Packing::of(lengths, GetParam().device);
    const Packing on_cpu = Packing::of(lengths, c10::kCPU);
    const int64_t rows = packing.num_tokens();
    for (const Shape& shape : {Shape{{4, 2, 64, false}, false}, Shape{{2, 2, 80, true}, true},
                               Shape{{3, 3, 128, true}, true}}) {
      const at::Tensor qkv = normal({rows, row_width(shape.heads)});
      const at::Tensor d_out = normal({rows, shape.heads.num_heads * shape.heads.head_dim});
      const at::Tensor slopes = shape.alibi ? alibi_slopes(shape.heads.num_heads) : at::Tensor();
      const at::Tensor here = shape.alibi ? slopes.to(fp32()) : slopes;
      const at::Tensor qkv_cpu = qkv.to(at::kCPU, at::kFloat);
      const AttentionOut expected = attention(qkv_cpu, shape.heads, on_cpu, 0.1, slopes);
      const AttentionOut actual = attention(qkv, shape.heads, packing, 0.1, here);
      expect_close(actual.out, expected.out, bound());
      expect_close(attention_backward(d_out, qkv, actual, shape.heads, packing, 0.1, here),
                   attention_backward(d_out.to(at::kCPU, at::kFloat), qkv_cpu, expected,
                                      shape.heads, on_cpu, 0.1, slopes),
                   bound());
    }
  }
}

TEST_P(Attention, LongSequencesHaveTheGradientOfTheirRowBlocksTogether) {
  // 300 rows span several blocks; the sum over all of d_v is that of d_out.
  const HeadLayout heads{2, 2, 64, false};
  const Packing packing = Packing::of({300, 40}, GetParam().device);
  const at::Tensor qkv = normal({340, row_width(heads)});
  const at::Tensor d_out = normal({340, 128});
  const AttentionOut saved = attention(qkv, heads, packing, 0.125, {});
  const at::Tensor d_qkv = attention_backward(d_out, qkv, saved, heads, packing, 0.125, {});
  expect_close(fp64(d_qkv).narrow(1, 256, 128).sum(0), fp64(d_out).sum(0), bound());
  // One direction of the loss, by central differences.
  const at::Tensor direction = at::randn({340, row_width(heads)}, at::kDouble);
  const auto loss = [&](double h) {
    const at::Tensor moved = fp64(qkv) + h * direction;
    return (attend_packed_fp64(moved, heads, {300, 40}, 0.125, {}) * fp64(d_out))
        .sum()
        .item<double>();
  };
  const double expected = (loss(1e-5) - loss(-1e-5)) / 2e-5;
  const double actual = (fp64(d_qkv) * direction).sum().item<double>();
  EXPECT_NEAR(actual, expected, bound() * d_qkv.numel() / 100.0);
}

TEST_P(Attention, ASequenceDoesNotDependOnItsNeighbours) {
  const HeadLayout heads{4, 4, 32, false};
  // A GPU may choose another product kernel for another batch: one rounding of 16 bits.
  const double near = GetParam().device.is_cpu() ? 1e-5 : bound();
  const at::Tensor slopes = alibi_slopes(4).to(fp32());
  const at::Tensor all = normal({90, row_width(heads)});
  const at::Tensor d_out = normal({90, 128});
  const Packing together = Packing::of({13, 70, 7}, GetParam().device);
  const Packing alone = Packing::of({70}, GetParam().device);
  const AttentionOut packed = attention(all, heads, together, 0.2, slopes);
  const at::Tensor one = all.narrow(0, 13, 70);
  const AttentionOut single = attention(one, heads, alone, 0.2, slopes);
  expect_close(packed.out.narrow(0, 13, 70), single.out, near);
  expect_close(
      attention_backward(d_out, all, packed, heads, together, 0.2, slopes).narrow(0, 13, 70),
      attention_backward(d_out.narrow(0, 13, 70), one, single, heads, alone, 0.2, slopes), near);
}

TEST_P(Attention, DecodingTokenByTokenGivesWhatTheWholeSequenceGives) {
  const std::vector<int64_t> prompts = {4, 0, 19, 140};
  const int64_t batch = 4;
  for (const Shape& shape : shapes()) {
    const HeadLayout& heads = shape.heads;
    const Packing packing = Packing::of(prompts, GetParam().device);
    const at::Tensor slopes = shape.alibi ? alibi_slopes(heads.num_heads).to(fp32()) : at::Tensor();
    const std::vector<int64_t> cache_shape = {6, 160, heads.num_kv_heads, heads.head_dim};
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const KvLayer cache{at::full(cache_shape, nan, options()),
                        at::full(cache_shape, nan, options())};
    const at::Tensor slots = at::tensor(std::vector<int64_t>{5, 0, 3, 1}).to(int64());
    at::Tensor lengths = at::tensor(prompts).to(int64());
    const at::Tensor prompt = normal({packing.num_tokens(), row_width(heads)});
    cache_prompts(prompt, heads, packing, slots, cache);
    std::vector<at::Tensor> sequences;
    for (int64_t b = 0; b < batch; ++b) {
      sequences.push_back(prompt.narrow(0, packing.offsets[b], prompts[b]));
    }
    for (int step = 0; step < 3; ++step) {
      const at::Tensor qkv = normal({batch, row_width(heads)});
      const at::Tensor out = attention_decode(qkv, heads, cache, slots, lengths, 0.2, slopes);
      for (int64_t b = 0; b < batch; ++b) {
        sequences[b] = at::cat({sequences[b], qkv.narrow(0, b, 1)});
        const at::Tensor whole = attend_fp64(fp64(sequences[b]), heads, 0.2, slopes);
        expect_close(out[b], whole[whole.size(0) - 1], bound());
      }
      lengths = lengths + 1;
    }
  }
}

TEST_P(Attention, DecodingDoesNotDependOnThePlaceInTheBatch) {
  const HeadLayout heads{4, 2, 64, false};
  const KvLayer cache{normal({3, 50, 2, 64}), normal({3, 50, 2, 64})};
  const at::Tensor qkv = normal({3, row_width(heads)});
  const at::Tensor slots = at::tensor(std::vector<int64_t>{0, 1, 2}).to(int64());
  const at::Tensor lengths = at::tensor(std::vector<int64_t>{49, 3, 20}).to(int64());
  const at::Tensor all = attention_decode(qkv, heads, cache, slots, lengths, 0.1, {});
  for (int64_t b = 0; b < 3; ++b) {
    const at::Tensor one = attention_decode(
        qkv.narrow(0, b, 1), heads, cache, slots.narrow(0, b, 1), lengths.narrow(0, b, 1), 0.1, {});
    EXPECT_TRUE(at::equal(all.narrow(0, b, 1), one));
  }
}

TEST_P(Attention, AnEmptyBatchGivesAnEmptyResult) {
  const HeadLayout heads{2, 2, 16, false};
  const Packing packing = Packing::of({}, GetParam().device);
  const at::Tensor qkv = normal({0, row_width(heads)});
  const AttentionOut result = attention(qkv, heads, packing, 1.0, {});
  EXPECT_EQ(result.out.sizes(), at::IntArrayRef({0, 32}));
  EXPECT_EQ(attention_backward(result.out, qkv, result, heads, packing, 1.0, {}).numel(), 0);
  const KvLayer cache{normal({2, 4, 2, 16}), normal({2, 4, 2, 16})};
  const at::Tensor none = at::empty({0}, int64());
  cache_prompts(qkv, heads, packing, none, cache);
  EXPECT_EQ(attention_decode(qkv, heads, cache, none, none, 1.0, {}).numel(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, Attention, testing::ValuesIn(cases()), case_name);

TEST(AttentionCache, ATokenPastTheSlotIsRefused) {
  const HeadLayout heads{1, 1, 4, false};
  const KvLayer cache{at::zeros({1, 3, 1, 4}), at::zeros({1, 3, 1, 4})};
  const at::Tensor qkv = at::ones({1, 12});
  const at::Tensor slot = at::zeros({1}, at::kLong);
  EXPECT_THROW(attention_decode(qkv, heads, cache, slot, at::full({1}, 3, at::kLong), 1.0, {}),
               StateError);
  EXPECT_THROW(cache_prompts(at::ones({4, 12}), heads, Packing::of({4}, c10::kCPU), slot, cache),
               StateError);
}

TEST(Packing, CountsPositionsFromEachSequencesFirstToken) {
  const Packing packing = Packing::of({3, 0, 2}, c10::kCPU);
  EXPECT_EQ(packing.offsets, (std::vector<int64_t>{0, 3, 3, 5}));
  EXPECT_EQ(packing.max_length, 3);
  EXPECT_TRUE(at::equal(packing.positions, at::tensor(std::vector<int64_t>{0, 1, 2, 0, 1})));
  EXPECT_TRUE(at::equal(packing.offsets_device, at::tensor(std::vector<int32_t>{0, 3, 3, 5})));
}

TEST(AlibiSlopes, AreThePublishedTablesAlsoForOddHeadCounts) {
  const auto expect_slopes = [](int64_t heads, std::vector<double> exponents) {
    const at::Tensor slopes = alibi_slopes(heads);
    ASSERT_EQ(slopes.numel(), heads);
    for (int64_t a = 0; a < heads; ++a) {
      EXPECT_FLOAT_EQ(slopes[a].item<float>(), std::exp2(-exponents[a])) << a;
    }
  };
  expect_slopes(4, {2, 4, 6, 8});
  expect_slopes(6, {2, 4, 6, 8, 1, 3});
  expect_slopes(12, {1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5});
  expect_slopes(1, {8});
}

}  // namespace
}  // namespace reknit::ops
