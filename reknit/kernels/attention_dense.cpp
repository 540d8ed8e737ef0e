#include "reknit/kernels/attention_dense.h"

#include <algorithm>
#include <limits>

namespace reknit::ops {
namespace {

/// Probabilities that exist at one time.
constexpr int64_t kMaxScores = int64_t{64} << 20;

/// Packed rows [N, heads, D] as [B * heads, L, D], zeros after each sequence's end, and
/// back. A padded row sees finite numbers only, and nothing sees it.
class Padding {
 public:
  explicit Padding(const Packing& packing)
      : batch_(packing.num_sequences()),
        length_(packing.max_length),
        positions_(packing.positions),
        sequences_(
            at::searchsorted(packing.offsets_device,
                             at::arange(packing.num_tokens(), packing.offsets_device.options()),
                             /*out_int32=*/false, /*right=*/true) -
            1) {}

  /// Each of the heads of x repeated for the query heads that share it.
  at::Tensor pad(const at::Tensor& x, int64_t num_heads) const {
    const at::Tensor out = at::zeros({batch_, x.size(1), length_, x.size(2)}, x.options());
    out.transpose(1, 2).index_put_({sequences_, positions_}, x);
    const int64_t shared = num_heads / x.size(1);
    return (shared == 1 ? out : out.repeat_interleave(shared, 1))
        .view({batch_ * num_heads, length_, x.size(2)});
  }

  /// The gradients of heads that share one of num_kv_heads are summed.
  at::Tensor unpad(const at::Tensor& x, int64_t num_kv_heads) const {
    const int64_t shared = x.size(0) / batch_ / num_kv_heads;
    const at::Tensor all = x.view({batch_, num_kv_heads, shared, length_, x.size(2)});
    const at::Tensor heads = shared == 1 ? all.select(2, 0) : at::sum(all, {2}, false, at::kFloat);
    return heads.transpose(1, 2).index({sequences_, positions_});
  }

  /// The keys [N] of a dropout as [B, L]; undefined where it is off.
  at::Tensor pad_keys(const Dropout& dropout) const {
    if (!dropout.on()) {
      return {};
    }
    const at::Tensor out = at::zeros({batch_, length_}, dropout.keys.options());
    out.index_put_({sequences_, positions_}, dropout.keys);
    return out;
  }

  int64_t length() const { return length_; }
  int64_t batch() const { return batch_; }

 private:
  int64_t batch_;
  int64_t length_;
  at::Tensor positions_;
  at::Tensor sequences_;
};

at::Tensor product_fp32(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) {
    return at::bmm(a, b);
  }
  return at::bmm(a, b, at::kFloat);
}

/// What the scores of all heads have in common.
struct Scoring {
  double scale;
  at::Tensor slopes;    // [B * A] fp32 or undefined
  at::Tensor distance;  // [L, L] fp32: j - i
  at::Tensor future;    // [L, L] bool: j > i

  Scoring(const Padding& padding, double scale_, const at::Tensor& slopes_,
          const at::TensorOptions& options)
      : scale(scale_) {
    const at::Tensor place = at::arange(padding.length(), options.dtype(at::kFloat));
    distance = place.unsqueeze(0) - place.unsqueeze(1);
    future = distance > 0;
    if (slopes_.defined()) {
      slopes = slopes_.repeat({padding.batch()});
    }
  }

  /// [n, L, L] fp32 of the heads [first, first + n).
  at::Tensor operator()(const at::Tensor& q, const at::Tensor& k, int64_t first) const {
    const at::Tensor scores = product_fp32(q, k.transpose(1, 2)).mul_(scale);
    if (slopes.defined()) {
      scores.addcmul_(slopes.narrow(0, first, q.size(0)).view({-1, 1, 1}), distance.unsqueeze(0));
    }
    return scores.masked_fill_(future, -std::numeric_limits<float>::infinity());
  }
};

/// Calls body(first, count) for chunks of the heads of all sequences.
template <class Body>
void for_chunks(const at::Tensor& q, Body&& body) {
  const int64_t chunk = std::max<int64_t>(1, kMaxScores / (q.size(1) * q.size(1)));
  for (int64_t first = 0; first < q.size(0); first += chunk) {
    body(first, std::min(chunk, q.size(0) - first));
  }
}

}  // namespace

AttentionOut dense_attention(const Heads& in, const Packing& packing, double scale,
                             const at::Tensor& slopes, const Dropout& dropout) {
  const int64_t num_heads = in.q.size(1);
  const Padding padding(packing);
  const Scoring scoring(padding, scale, slopes, in.q.options());
  const at::Tensor keys = padding.pad_keys(dropout);
  const at::Tensor q = padding.pad(in.q, num_heads);
  const at::Tensor k = padding.pad(in.k, num_heads);
  const at::Tensor v = padding.pad(in.v, num_heads);
  const at::Tensor out = at::empty_like(q);
  const at::Tensor lse = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  for_chunks(q, [&](int64_t first, int64_t count) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    const at::Tensor scores = scoring(part(q), part(k), first);
    part(lse).copy_(at::logsumexp(scores, -1));
    const at::Tensor p = scores.sub_(part(lse).unsqueeze(-1)).exp_();
    drop_scores(p, dropout, keys, first, num_heads);
    part(out).copy_(at::bmm(p.to(q.scalar_type()), part(v)));
  });
  return {padding.unpad(out, num_heads).reshape({in.q.size(0), -1}), lse};
}

void dense_attention_backward(const at::Tensor& d_out, const Heads& in, const AttentionOut& saved,
                              const Packing& packing, double scale, const at::Tensor& slopes,
                              const Dropout& dropout, const Heads& grads) {
  const int64_t num_heads = in.q.size(1);
  const Padding padding(packing);
  const Scoring scoring(padding, scale, slopes, in.q.options());
  const at::Tensor keys = padding.pad_keys(dropout);
  const at::Tensor q = padding.pad(in.q, num_heads);
  const at::Tensor k = padding.pad(in.k, num_heads);
  const at::Tensor v = padding.pad(in.v, num_heads);
  const at::Tensor dy = padding.pad(d_out.view(in.q.sizes()), num_heads);
  const at::Tensor out = padding.pad(saved.out.view(in.q.sizes()), num_heads);
  const at::Tensor dq = at::empty_like(q);
  const at::Tensor dk = at::empty_like(q);
  const at::Tensor dv = at::empty_like(q);
  for_chunks(q, [&](int64_t first, int64_t count) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    const at::Tensor p =
        scoring(part(q), part(k), first).sub_(part(saved.lse).unsqueeze(-1)).exp_();
    const at::Tensor along = (part(dy).to(at::kFloat) * part(out)).sum(-1, true);
    const at::Tensor d_p = product_fp32(part(dy), part(v).transpose(1, 2));
    drop_scores(d_p, dropout, keys, first, num_heads);
    const at::Tensor d_scores = d_p.sub_(along).mul_(p).mul_(scale).to(q.scalar_type());
    drop_scores(p, dropout, keys, first, num_heads);
    part(dv).copy_(at::bmm(p.to(q.scalar_type()).transpose(1, 2), part(dy)));
    part(dq).copy_(at::bmm(d_scores, part(k)));
    part(dk).copy_(at::bmm(d_scores.transpose(1, 2), part(q)));
  });
  grads.q.copy_(padding.unpad(dq, num_heads));
  grads.k.copy_(padding.unpad(dk, in.k.size(1)));
  grads.v.copy_(padding.unpad(dv, in.k.size(1)));
}

}  // namespace reknit::ops
