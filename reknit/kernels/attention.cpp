#include "reknit/kernels/attention.h"

#include "reknit/base/error.h"
#include "reknit/base/host_copy.h"
#include "reknit/kernels/attention_decode_cpu.h"
#include "reknit/kernels/attention_dense.h"
#include "reknit/kernels/cuda_path.h"
#include "reknit/kernels/heads.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace reknit::ops {
namespace {

/// Query rows that are worked on at once: bounds the scores to [A, kRows, n].
constexpr int64_t kRows = 128;

/// Rows [begin, begin + count) of x [N, K, D] as [A, count, D] fp32, each key-value
/// head repeated for the query heads that share it.
at::Tensor by_head(const at::Tensor& x, int64_t begin, int64_t count, int64_t num_heads) {
  const at::Tensor part = x.narrow(0, begin, count).transpose(0, 1).to(at::kFloat);
  const int64_t shared = num_heads / x.size(1);
  if (shared == 1) {
    return part;
  }
  return part.unsqueeze(1)
      .expand({x.size(1), shared, count, x.size(2)})
      .reshape({num_heads, count, x.size(2)});
}

/// What is added to scale q k^T: -inf where j > i, ALiBi's distances elsewhere.
/// Rows [first, first + rows), columns [0, first + rows) -> [A or 1, rows, columns].
at::Tensor score_bias(int64_t first, int64_t rows, const at::Tensor& slopes,
                      const at::TensorOptions& options) {
  const at::Tensor i = at::arange(first, first + rows, options).unsqueeze(1);
  const at::Tensor j = at::arange(first + rows, options).unsqueeze(0);
  const at::Tensor distance = (j - i).unsqueeze(0);
  const at::Tensor bias =
      slopes.defined() ? distance * slopes.view({-1, 1, 1}) : at::zeros_like(distance);
  return bias.masked_fill_(distance > 0, -std::numeric_limits<float>::infinity());
}

at::Tensor scores(const at::Tensor& q, const at::Tensor& k, int64_t first, double scale,
                  const at::Tensor& slopes) {
  const at::Tensor bias = score_bias(first, q.size(1), slopes, q.options());
  return at::baddbmm(bias, q, k.transpose(1, 2), 1, scale);
}

/// Attention dropout of rows [first, first + rows) of the batch, p [A, rows, n].
void drop_rows_of(const at::Tensor& p, const Dropout& dropout, int64_t first) {
  if (dropout.on()) {
    drop_scores(p, dropout, dropout.keys.narrow(0, first, p.size(1)).unsqueeze(0), 0, p.size(0));
  }
}

/// One sequence: rows [begin, begin + length).
void attend(const Heads& in, int64_t begin, int64_t length, double scale, const at::Tensor& slopes,
            const Dropout& dropout, const at::Tensor& out, const at::Tensor& lse) {
  const int64_t num_heads = in.q.size(1);
  const at::Tensor keys = by_head(in.k, begin, length, num_heads);
  const at::Tensor values = by_head(in.v, begin, length, num_heads);
  for (int64_t first = 0; first < length; first += kRows) {
    const int64_t rows = std::min(kRows, length - first);
    const at::Tensor q = by_head(in.q, begin + first, rows, num_heads);
    const at::Tensor p = scores(q, keys.narrow(1, 0, first + rows), first, scale, slopes);
    const at::Tensor top = p.amax(-1, true);
    p.sub_(top).exp_();
    const at::Tensor total = p.sum(-1, true);
    p.div_(total);
    lse.narrow(1, begin + first, rows).copy_((total.log_() + top).squeeze(-1));
    drop_rows_of(p, dropout, begin + first);
    out.narrow(0, begin + first, rows)
        .copy_(at::bmm(p, values.narrow(1, 0, first + rows)).transpose(0, 1));
  }
}

/// x [A, n, D] summed over the query heads that share a key-value head -> [n, K, D].
at::Tensor to_kv_heads(const at::Tensor& x, int64_t num_kv_heads) {
  const int64_t shared = x.size(0) / num_kv_heads;
  const at::Tensor summed =
      shared == 1 ? x : x.view({num_kv_heads, shared, x.size(1), x.size(2)}).sum(1);
  return summed.transpose(0, 1);
}

struct Backward {
  const Heads& in;
  const Heads& grads;
  const at::Tensor d_out;  // [N, A, D]
  const at::Tensor out;    // [N, A, D]
  const at::Tensor lse;    // [A, N]
  double scale;
  const at::Tensor& slopes;
  const Dropout& dropout;
};

void attend_backward(const Backward& b, int64_t begin, int64_t length) {
  const int64_t num_heads = b.in.q.size(1);
  const at::Tensor keys = by_head(b.in.k, begin, length, num_heads);
  const at::Tensor values = by_head(b.in.v, begin, length, num_heads);
  const at::Tensor d_keys = at::zeros_like(keys, at::MemoryFormat::Contiguous);
  const at::Tensor d_values = at::zeros_like(keys, at::MemoryFormat::Contiguous);
  for (int64_t first = 0; first < length; first += kRows) {
    const int64_t rows = std::min(kRows, length - first);
    const int64_t columns = first + rows;
    const at::Tensor q = by_head(b.in.q, begin + first, rows, num_heads);
    const at::Tensor d_out = by_head(b.d_out, begin + first, rows, num_heads);
    const at::Tensor out = by_head(b.out, begin + first, rows, num_heads);
    const at::Tensor p = scores(q, keys.narrow(1, 0, columns), first, b.scale, b.slopes)
                             .sub_(b.lse.narrow(1, begin + first, rows).unsqueeze(-1))
                             .exp_();
    const at::Tensor d_p = at::bmm(d_out, values.narrow(1, 0, columns).transpose(1, 2));
    drop_rows_of(d_p, b.dropout, begin + first);
    const at::Tensor d_scores = d_p.sub_((d_out * out).sum(-1, true)).mul_(p).mul_(b.scale);
    drop_rows_of(p, b.dropout, begin + first);
    d_values.narrow(1, 0, columns).baddbmm_(p.transpose(1, 2), d_out);
    b.grads.q.narrow(0, begin + first, rows)
        .copy_(at::bmm(d_scores, keys.narrow(1, 0, columns)).transpose(0, 1));
    d_keys.narrow(1, 0, columns).baddbmm_(d_scores.transpose(1, 2), q);
  }
  const int64_t num_kv_heads = b.in.k.size(1);
  b.grads.k.narrow(0, begin, length).copy_(to_kv_heads(d_keys, num_kv_heads));
  b.grads.v.narrow(0, begin, length).copy_(to_kv_heads(d_values, num_kv_heads));
}

}  // namespace

Heads split_heads(const at::Tensor& qkv, const HeadLayout& heads) {
  const int64_t rows = qkv.size(0);
  const int64_t dim = heads.head_dim;
  REKNIT_INVARIANT(qkv.size(1) == (heads.num_heads + 2 * heads.num_kv_heads) * dim, "rows of ",
                   qkv.size(1), " hold q, k and v of ", heads.num_heads, " and ",
                   heads.num_kv_heads, " heads of size ", dim);
  if (heads.interleaved) {
    REKNIT_INVARIANT(heads.num_heads == heads.num_kv_heads, "interleaved heads cannot be grouped");
    const at::Tensor all = qkv.view({rows, heads.num_heads, 3, dim});
    return {all.select(2, 0), all.select(2, 1), all.select(2, 2)};
  }
  REKNIT_INVARIANT(heads.num_heads % heads.num_kv_heads == 0, heads.num_heads, " heads over ",
                   heads.num_kv_heads, " key-value heads");
  const at::Tensor all = qkv.view({rows, heads.num_heads + 2 * heads.num_kv_heads, dim});
  return {all.narrow(1, 0, heads.num_heads), all.narrow(1, heads.num_heads, heads.num_kv_heads),
          all.narrow(1, heads.num_heads + heads.num_kv_heads, heads.num_kv_heads)};
}

Packing Packing::of(std::vector<int64_t> lengths, c10::Device device) {
  Packing packing;
  packing.offsets.assign(lengths.size() + 1, 0);
  std::inclusive_scan(lengths.begin(), lengths.end(), packing.offsets.begin() + 1);
  const int64_t total = packing.offsets.back();
  REKNIT_INVARIANT(total <= std::numeric_limits<int32_t>::max(), total,
                   " tokens in one batch: the limit is 2^31 - 1");
  at::Tensor offsets = at::empty({static_cast<int64_t>(packing.offsets.size())}, at::kInt);
  std::copy(packing.offsets.begin(), packing.offsets.end(), offsets.mutable_data_ptr<int32_t>());
  at::Tensor positions = at::empty({total}, at::kLong);
  for (size_t b = 0; b < lengths.size(); ++b) {
    REKNIT_INVARIANT(lengths[b] >= 0, "sequence ", b, " has length ", lengths[b]);
    int64_t* first = positions.mutable_data_ptr<int64_t>() + packing.offsets[b];
    std::iota(first, first + lengths[b], 0);
    packing.max_length = std::max(packing.max_length, lengths[b]);
  }
  packing.lengths = std::move(lengths);
  packing.offsets_device = to_device(offsets, device);
  packing.positions = to_device(positions, device);
  return packing;
}

at::Tensor alibi_slopes(int64_t num_heads) {
  REKNIT_INVARIANT(num_heads > 0, "ALiBi for ", num_heads, " heads");
  const auto lower = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_heads)));
  at::Tensor slopes = at::empty({num_heads}, at::kFloat);
  float* slope = slopes.mutable_data_ptr<float>();
  for (int64_t i = 0; i < num_heads; ++i) {
    const double exponent =
        i < lower ? -8.0 * (i + 1) / lower : -4.0 * (2 * (i - lower) + 1) / lower;
    slope[i] = static_cast<float>(std::exp2(exponent));
  }
  return slopes;
}

AttentionOut attention(const at::Tensor& qkv, const HeadLayout& heads, const Packing& packing,
                       double scale, const at::Tensor& slopes, const Dropout& dropout) {
  const int64_t rows = qkv.size(0);
  const Heads in = split_heads(qkv, heads);
  if (qkv.is_cuda() && rows > 0) {
    return cuda::fused_attention_takes(in, packing, slopes) && !dropout.on()
               ? cuda::fused_attention(in, packing, scale, slopes)
               : dense_attention(in, packing, scale, slopes, dropout);
  }
  AttentionOut result{at::empty({rows, heads.num_heads * heads.head_dim}, qkv.options()),
                      at::empty({heads.num_heads, rows}, qkv.options().dtype(at::kFloat))};
  const at::Tensor out = result.out.view({rows, heads.num_heads, heads.head_dim});
  for (int64_t b = 0; b < packing.num_sequences(); ++b) {
    if (packing.lengths[b] > 0) {
      attend(in, packing.offsets[b], packing.lengths[b], scale, slopes, dropout, out, result.lse);
    }
  }
  return result;
}

at::Tensor attention_backward(const at::Tensor& d_out, const at::Tensor& qkv,
                              const AttentionOut& saved, const HeadLayout& heads,
                              const Packing& packing, double scale, const at::Tensor& slopes,
                              const Dropout& dropout) {
  const std::vector<int64_t> shape = {qkv.size(0), heads.num_heads, heads.head_dim};
  at::Tensor d_qkv = at::empty_like(qkv);
  const Heads in = split_heads(qkv, heads);
  const Heads grads = split_heads(d_qkv, heads);
  if (qkv.is_cuda() && qkv.size(0) > 0) {
    if (cuda::fused_attention_takes(in, packing, slopes) && !dropout.on()) {
      cuda::fused_attention_backward(d_out, in, saved, packing, scale, slopes, grads);
    } else {
      dense_attention_backward(d_out, in, saved, packing, scale, slopes, dropout, grads);
    }
    return d_qkv;
  }
  const Backward backward{
      in, grads, d_out.view(shape), saved.out.view(shape), saved.lse, scale, slopes, dropout};
  for (int64_t b = 0; b < packing.num_sequences(); ++b) {
    if (packing.lengths[b] > 0) {
      attend_backward(backward, packing.offsets[b], packing.lengths[b]);
    }
  }
  return d_qkv;
}

void cache_prompts(const at::Tensor& qkv, const HeadLayout& heads, const Packing& packing,
                   const at::Tensor& slots, const KvLayer& cache) {
  REKNIT_INVARIANT(packing.max_length <= cache.k.size(1), "a prompt of ", packing.max_length,
                   " tokens does not fit a cache slot of ", cache.k.size(1));
  const Heads in = split_heads(qkv, heads);
  if (qkv.is_cuda()) {
    cuda::cache_prompts(in, packing, slots, cache);
    return;
  }
  const auto* slot = slots.const_data_ptr<int64_t>();
  for (int64_t b = 0; b < packing.num_sequences(); ++b) {
    const int64_t first = packing.offsets[b];
    const int64_t length = packing.lengths[b];
    cache.k.select(0, slot[b]).narrow(0, 0, length).copy_(in.k.narrow(0, first, length));
    cache.v.select(0, slot[b]).narrow(0, 0, length).copy_(in.v.narrow(0, first, length));
  }
}

at::Tensor attention_decode(const at::Tensor& qkv, const HeadLayout& heads, const KvLayer& cache,
                            const at::Tensor& slots, const at::Tensor& lengths, double scale,
                            const at::Tensor& slopes) {
  const Heads in = split_heads(qkv, heads);
  if (qkv.is_cuda()) {
    return cuda::attention_decode(in, cache, slots, lengths, scale, slopes);
  }
  at::Tensor out = at::empty({qkv.size(0), heads.num_heads * heads.head_dim}, qkv.options());
  cpu::attention_decode(in, cache, slots, lengths, scale, slopes, out);
  return out;
}

}  // namespace reknit::ops
