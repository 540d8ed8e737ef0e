// Log-probabilities and sampling on CUDA: tensors to launchers.
#include "reknit/kernels/cuda_args.h"
#include "reknit/kernels/cuda_path.h"
#include "reknit/kernels/logprobs.h"
#include "reknit/kernels/sampling.h"

namespace reknit::ops::cuda {

void logprobs(const at::Tensor& logits, const at::Tensor& targets, const TokenLogprobs& out) {
  kernels::Logprobs args;
  args.rows = logits.size(0);
  args.columns = logits.size(1);
  args.logits = logits.const_data_ptr<float>();
  args.targets = targets.const_data_ptr<int64_t>();
  args.logp = out.logp.mutable_data_ptr<float>();
  args.lse = out.lse.mutable_data_ptr<float>();
  args.entropy = out.entropy.defined() ? out.entropy.mutable_data_ptr<float>() : nullptr;
  kernels::logprobs(args, stream_of(logits));
}

at::Tensor logprobs_backward(const at::Tensor& logits, const at::Tensor& targets,
                             const at::Tensor& lse, const at::Tensor& d_logp,
                             at::ScalarType dtype) {
  at::Tensor d_logits =
      dtype == at::kFloat ? logits : at::empty(logits.sizes(), logits.options().dtype(dtype));
  kernels::LogprobsBackward args;
  args.rows = logits.size(0);
  args.columns = logits.size(1);
  args.logits = logits.const_data_ptr<float>();
  args.targets = targets.const_data_ptr<int64_t>();
  args.lse = lse.const_data_ptr<float>();
  args.d_logp = d_logp.const_data_ptr<float>();
  args.d_logits = d_logits.mutable_data_ptr();
  kernels::logprobs_backward(element_of(dtype), args, stream_of(logits));
  return d_logits;
}

Sampled sample(const at::Tensor& logits, const SampleSettings& settings, const at::Tensor& keys,
               const at::Tensor& positions, const at::Tensor& forbidden_until, int64_t eos) {
  const int64_t columns = settings.vocab == 0 ? logits.size(1) : settings.vocab;
  REKNIT_INVARIANT(columns > 0 && columns <= logits.size(1) && logits.stride(1) == 1,
                   "a vocabulary of ", columns, " in ", logits.size(1), " logits");
  Sampled drawn{at::empty({logits.size(0)}, keys.options()),
                at::empty({logits.size(0)}, logits.options())};
  kernels::Sampling args;
  args.rows = logits.size(0);
  args.columns = columns;
  args.stride = logits.stride(0);
  args.logits = logits.const_data_ptr<float>();
  args.temperature = static_cast<float>(settings.temperature);
  args.top_k = settings.top_k;
  args.top_p = settings.top_p;
  args.keys = keys.const_data_ptr<int64_t>();
  args.positions = positions.const_data_ptr<int64_t>();
  args.forbidden_until = forbidden_until.const_data_ptr<int64_t>();
  args.eos = eos;
  args.tokens = drawn.tokens.mutable_data_ptr<int64_t>();
  args.logp = drawn.logp.mutable_data_ptr<float>();
  const at::Tensor parts =
      at::empty({kernels::sampling_scratch(args)}, logits.options().dtype(at::kByte));
  args.scratch = parts.mutable_data_ptr();
  kernels::sample(args, stream_of(logits));
  return drawn;
}

void keep_drawn(const Sampled& drawn, const DrawState& state) {
  kernels::KeepDrawn args;
  args.rows = drawn.tokens.size(0);
  args.most = state.tokens.size(0);
  args.drawn = drawn.tokens.const_data_ptr<int64_t>();
  args.drawn_logp = drawn.logp.const_data_ptr<float>();
  args.inputs = state.inputs.mutable_data_ptr<int64_t>();
  args.lengths = state.lengths.mutable_data_ptr<int64_t>();
  args.positions = state.positions.mutable_data_ptr<int64_t>();
  args.tokens = state.tokens.mutable_data_ptr<int64_t>();
  args.logp = state.logp.mutable_data_ptr<float>();
  kernels::keep_drawn(args, stream_of(drawn.tokens));
}

}  // namespace reknit::ops::cuda
