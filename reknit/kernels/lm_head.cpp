#include "reknit/kernels/lm_head.h"

#include "reknit/kernels/cuda_path.h"
#include "reknit/kernels/lm_head_chunks.h"
#include "reknit/kernels/sample_cpu.h"

#include <algorithm>
#include <limits>

namespace reknit::ops {
namespace {

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

/// Calls body(first, rows) for chunks of the rows of `hidden`.
template <class Body>
void for_chunks(const at::Tensor& hidden, int64_t columns, Body&& body) {
  const int64_t chunk = logit_chunk_rows(columns, hidden.is_cuda());
  for (int64_t first = 0; first < hidden.size(0); first += chunk) {
    body(first, std::min(chunk, hidden.size(0) - first));
  }
}

TokenLogprobs rows_of(const TokenLogprobs& all, int64_t first, int64_t rows) {
  return {all.logp.narrow(0, first, rows), all.lse.narrow(0, first, rows),
          all.entropy.defined() ? all.entropy.narrow(0, first, rows) : at::Tensor()};
}

/// Logits z [n, V], which it overwrites -> out [n].
void logprobs_cpu(const at::Tensor& z, const at::Tensor& targets, const TokenLogprobs& out) {
  const bool with_entropy = out.entropy.defined();
  const at::Tensor top = z.amax(1, true);
  z.sub_(top);
  const at::Tensor chosen = z.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor weights = with_entropy ? z.exp() : at::Tensor();
  const at::Tensor total = (with_entropy ? weights : z.exp_()).sum(1);
  const at::Tensor log_total = total.log();
  out.lse.copy_(log_total + top.squeeze(1));
  out.logp.copy_((chosen - log_total).masked_fill_(targets < 0, 0));
  if (with_entropy) {
    z.clamp_min_(std::numeric_limits<float>::lowest());  // a weight of 0 adds 0, not 0 * -inf
    out.entropy.copy_(log_total - z.mul_(weights).sum(1) / total);
  }
}

/// Logits z [n, V], which it overwrites -> their gradient in `dtype`.
at::Tensor logprobs_backward_cpu(const at::Tensor& z, const at::Tensor& targets,
                                 const at::Tensor& lse, const at::Tensor& d_logp,
                                 at::ScalarType dtype) {
  const at::Tensor target = targets.unsqueeze(1);
  const at::Tensor dy = d_logp.unsqueeze(1);
  z.sub_(lse.unsqueeze(1)).exp_().mul_(-dy);
  z.scatter_add_(1, target.clamp_min(0), dy).masked_fill_(target < 0, 0);
  return z.to(dtype);
}

/// Logits of a chunk, and what their gradient needs; `z` may be overwritten.
struct ChunkBackward {
  at::Tensor z, targets, lse, d_logp;
};

/// -> d_hidden [n, E] of the chunk; adds into d_weight unless it is undefined.
void add_logits_backward(const ChunkBackward& chunk, const at::Tensor& hidden,
                         const at::Tensor& weight, at::Tensor& d_weight, at::Tensor d_hidden) {
  const auto backward = chunk.z.is_cuda() ? cuda::logprobs_backward : logprobs_backward_cpu;
  const at::Tensor d_logits =
      backward(chunk.z, chunk.targets, chunk.lse, chunk.d_logp, hidden.scalar_type());
  at::mm_out(d_hidden, d_logits, weight);
  if (d_weight.defined()) {
    at::addmm_out(d_weight, d_weight, d_logits.t(), hidden);
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
  for_chunks(hidden, columns, [&](int64_t first, int64_t rows) {
    const at::Tensor z = product_fp32(hidden.narrow(0, first, rows), weight);
    const auto fill = z.is_cuda() ? cuda::logprobs : logprobs_cpu;
    fill(z, targets.narrow(0, first, rows), rows_of(result, first, rows));
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
  for_chunks(hidden, columns, [&](int64_t first, int64_t rows) {
    const at::Tensor x = hidden.narrow(0, first, rows);
    const at::Tensor z = product_fp32(x, weight);
    add_logits_backward({z, targets.narrow(0, first, rows), saved.lse.narrow(0, first, rows),
                         d_logp.narrow(0, first, rows)},
                        x, weight, d_weight, d_hidden.narrow(0, first, rows));
  });
  return d_hidden;
}

LearnedLogprobs learn_token_logprobs(const at::Tensor& d_logp, const at::Tensor& hidden,
                                     const ParamView& table, const at::Tensor& targets,
                                     int64_t vocab, const at::Tensor& d_table) {
  const int64_t columns = columns_of(table.read(), vocab);
  const at::Tensor weight = table.read().narrow(0, 0, columns);
  at::Tensor d_weight = d_table.defined() ? d_table.narrow(0, 0, columns) : at::Tensor();
  const auto options = hidden.options().dtype(at::kFloat);
  LearnedLogprobs result{
      {at::empty({hidden.size(0)}, options), at::empty({hidden.size(0)}, options), {}},
      at::empty_like(hidden)};
  for_chunks(hidden, columns, [&](int64_t first, int64_t rows) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, rows); };
    const at::Tensor z = product_fp32(part(hidden), weight);
    const TokenLogprobs out = rows_of(result.logprobs, first, rows);
    z.is_cuda() ? cuda::logprobs(z, part(targets), out)
                : logprobs_cpu(z.clone(), part(targets), out);
    add_logits_backward({z, part(targets), out.lse, part(d_logp)}, part(hidden), weight, d_weight,
                        part(result.d_hidden));
  });
  return result;
}

at::Tensor logits(const at::Tensor& hidden, const ParamView& table) {
  if (hidden.is_cuda()) {
    const std::optional<at::Tensor> skinny =
        cuda::skinny_linear(hidden, table.read(), {.out_dtype = at::kFloat});
    if (skinny) {
      return *skinny;
    }
  }
  return product_fp32(hidden, table.read());
}

Sampled sample(const at::Tensor& logits, const SampleSettings& settings, const at::Tensor& keys,
               const at::Tensor& positions, const at::Tensor& forbidden_until, int64_t eos) {
  if (logits.is_cuda()) {
    return cuda::sample(logits, settings, keys, positions, forbidden_until, eos);
  }
  return cpu::sample(logits, settings, keys, positions, forbidden_until, eos);
}

void keep_drawn(const Sampled& drawn, const DrawState& state) {
  cuda::keep_drawn(drawn, state);
}

}  // namespace reknit::ops
