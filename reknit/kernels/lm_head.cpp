#include "reknit/kernels/lm_head.h"

#include "reknit/kernels/sample_cpu.h"

#include <algorithm>

namespace reknit::ops {
namespace {

/// Logits that exist at one time.
constexpr int64_t kChunkElements = int64_t{8} << 20;

/// a [N, E] b [V, E]^T in fp32. On CPU 16-bit products are rounded to 16 bits first.
at::Tensor product_fp32(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) {
    return at::mm(a, b.t());
  }
  return a.is_cpu() ? at::mm(a, b.t()).to(at::kFloat) : at::mm(a, b.t(), at::kFloat);
}

int64_t columns_of(const at::Tensor& table, int64_t vocab) {
  REKNIT_INVARIANT(vocab >= 0 && vocab <= table.size(0), "a vocabulary of ", vocab,
                   " in a table of ", table.size(0), " rows");
  return vocab == 0 ? table.size(0) : vocab;
}

/// Calls body(first, rows) for chunks of the `rows_total` rows.
template <class Body>
void for_chunks(int64_t rows_total, int64_t columns, Body&& body) {
  const int64_t chunk = std::max<int64_t>(1, kChunkElements / columns);
  for (int64_t first = 0; first < rows_total; first += chunk) {
    body(first, std::min(chunk, rows_total - first));
  }
}

}  // namespace

TokenLogprobs token_logprobs(const at::Tensor& hidden, const ParamView& table,
                             const at::Tensor& targets, int64_t vocab, bool with_entropy) {
  const int64_t columns = columns_of(table.read(), vocab);
  const at::Tensor weight = table.read().narrow(0, 0, columns);
  const auto options = hidden.options().dtype(at::kFloat);
  TokenLogprobs result{
      at::empty({hidden.size(0)}, options), at::empty({hidden.size(0)}, options), {}};
  if (with_entropy) {
    result.entropy = at::empty({hidden.size(0)}, options);
  }
  for_chunks(hidden.size(0), columns, [&](int64_t first, int64_t rows) {
    const at::Tensor target = targets.narrow(0, first, rows);
    const at::Tensor z = product_fp32(hidden.narrow(0, first, rows), weight);
    const at::Tensor top = z.amax(1, true);
    z.sub_(top);
    const at::Tensor chosen = z.gather(1, target.clamp_min(0).unsqueeze(1)).squeeze(1);
    const at::Tensor weights = with_entropy ? z.exp() : at::Tensor();
    const at::Tensor total = (with_entropy ? weights : z.exp_()).sum(1);
    const at::Tensor log_total = total.log();
    result.lse.narrow(0, first, rows).copy_(log_total + top.squeeze(1));
    result.logp.narrow(0, first, rows).copy_((chosen - log_total).masked_fill_(target < 0, 0));
    if (with_entropy) {
      result.entropy.narrow(0, first, rows).copy_(log_total - (z.mul_(weights)).sum(1) / total);
    }
  });
  return result;
}

at::Tensor token_logprobs_backward(const at::Tensor& d_logp, const at::Tensor& hidden,
                                   const ParamView& table, const at::Tensor& targets,
                                   const TokenLogprobs& saved, int64_t vocab,
                                   const at::Tensor& d_table) {
  const int64_t columns = columns_of(table.read(), vocab);
  const at::Tensor weight = table.read().narrow(0, 0, columns);
  at::Tensor d_weight = d_table.defined() ? d_table.narrow(0, 0, columns) : at::Tensor();
  at::Tensor d_hidden = at::empty_like(hidden);
  for_chunks(hidden.size(0), columns, [&](int64_t first, int64_t rows) {
    const at::Tensor x = hidden.narrow(0, first, rows);
    const at::Tensor target = targets.narrow(0, first, rows).unsqueeze(1);
    const at::Tensor dy = d_logp.narrow(0, first, rows).unsqueeze(1);
    const at::Tensor z = product_fp32(x, weight);
    z.sub_(saved.lse.narrow(0, first, rows).unsqueeze(1)).exp_().mul_(-dy);
    z.scatter_add_(1, target.clamp_min(0), dy).masked_fill_(target < 0, 0);
    const at::Tensor d_logits = z.to(hidden.scalar_type());
    at::Tensor d_rows = d_hidden.narrow(0, first, rows);
    at::mm_out(d_rows, d_logits, weight);
    if (d_weight.defined()) {
      at::addmm_out(d_weight, d_weight, d_logits.t(), x);
    }
  });
  return d_hidden;
}

at::Tensor logits(const at::Tensor& hidden, const ParamView& table) {
  return product_fp32(hidden, table.read());
}

Sampled sample(const at::Tensor& logits, const SampleSettings& settings, const at::Tensor& keys,
               const at::Tensor& positions, const at::Tensor& forbidden_until, int64_t eos) {
  if (!logits.is_cpu()) {
    const auto device = logits.device();
    Sampled drawn =
        sample(logits.cpu(), settings, keys.cpu(), positions.cpu(), forbidden_until.cpu(), eos);
    return {drawn.tokens.to(device), drawn.logp.to(device)};
  }
  return cpu::sample(logits, settings, keys, positions, forbidden_until, eos);
}

}  // namespace reknit::ops
