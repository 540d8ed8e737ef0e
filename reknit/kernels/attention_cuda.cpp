// Attention on CUDA: cuDNN's or flash attention over packed rows, decode over the cache.
#include "reknit/kernels/attention_limits.h"
#include "reknit/kernels/cuda_args.h"
#include "reknit/kernels/cuda_path.h"
#include "reknit/kernels/cudnn_attention.h"
#include "reknit/kernels/decode_attention.h"

#include <tuple>

namespace reknit::ops::cuda {
namespace {

kernels::Cache cache_args(const KvLayer& cache) {
  REKNIT_INVARIANT(cache.k.is_contiguous() && cache.v.is_contiguous(),
                   "the key-value cache must be contiguous");
  return {cache.k.mutable_data_ptr(), cache.v.mutable_data_ptr(), cache.k.size(0), cache.k.size(1),
          cache.used};
}

kernels::HeadStrides strides_of(const at::Tensor& x) {
  return {x.stride(0), x.stride(1)};
}

}  // namespace

bool fused_attention_takes(const Heads& in, const Packing& packing, const at::Tensor& slopes) {
  const int64_t dim = in.q.size(2);
  return (in.q.scalar_type() != at::kFloat && !slopes.defined() && dim % 8 == 0 &&
          dim <= kFlashWidestHead) ||
         cudnn_attention_takes(in, packing, slopes);
}

AttentionOut fused_attention(const Heads& in, const Packing& packing, double scale,
                             const at::Tensor& slopes) {
  if (cudnn_attention_takes(in, packing, slopes)) {
    return cudnn_attention(in, packing, scale, slopes.defined());
  }
  const auto result = at::_flash_attention_forward(
      in.q, in.k, in.v, packing.offsets_device, packing.offsets_device, packing.max_length,
      packing.max_length, 0.0, /*is_causal=*/true, /*return_debug_mask=*/false, scale);
  return {std::get<0>(result).reshape({in.q.size(0), -1}), std::get<1>(result)};
}

void fused_attention_backward(const at::Tensor& d_out, const Heads& in, const AttentionOut& saved,
                              const Packing& packing, double scale, const at::Tensor& slopes,
                              const Heads& grads) {
  if (cudnn_attention_takes(in, packing, slopes)) {
    cudnn_attention_backward(d_out, in, saved, packing, scale, slopes.defined(), grads);
    return;
  }
  const auto words = d_out.options().dtype(at::kUInt64);  // of the dropout, which is off
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      d_out.view(in.q.sizes()), in.q, in.k, in.v, saved.out.view(in.q.sizes()), saved.lse,
      packing.offsets_device, packing.offsets_device, packing.max_length, packing.max_length, 0.0,
      /*is_causal=*/true, at::empty({2}, words), at::empty({}, words), scale);
  grads.q.copy_(dq);
  grads.k.copy_(dk);
  grads.v.copy_(dv);
}

void cache_prompts(const Heads& in, const Packing& packing, const at::Tensor& slots,
                   const KvLayer& cache) {
  kernels::CachePrompts args;
  args.tokens = in.k.size(0);
  args.batch = packing.num_sequences();
  args.num_kv_heads = in.k.size(1);
  args.head_dim = in.k.size(2);
  args.k = in.k.const_data_ptr();
  args.v = in.v.const_data_ptr();
  args.kv_strides = strides_of(in.k);
  args.cache = cache_args(cache);
  args.offsets = packing.offsets_device.const_data_ptr<int32_t>();
  args.slot_of = slots.const_data_ptr<int64_t>();
  kernels::cache_prompts(element_of(in.k.scalar_type()), args, stream_of(in.k));
}

at::Tensor attention_decode(const Heads& in, const KvLayer& cache, const at::Tensor& slots,
                            const at::Tensor& lengths, double scale, const at::Tensor& slopes) {
  at::Tensor out = at::empty({in.q.size(0), in.q.size(1) * in.q.size(2)}, in.q.options());
  kernels::DecodeAttention args;
  args.batch = in.q.size(0);
  args.num_heads = in.q.size(1);
  args.num_kv_heads = in.k.size(1);
  args.head_dim = in.q.size(2);
  args.scale = static_cast<float>(scale);
  args.q = in.q.const_data_ptr();
  args.k = in.k.const_data_ptr();
  args.v = in.v.const_data_ptr();
  args.q_strides = strides_of(in.q);
  args.kv_strides = strides_of(in.k);
  args.cache = cache_args(cache);
  args.slot_of = slots.const_data_ptr<int64_t>();
  args.length_of = lengths.const_data_ptr<int64_t>();
  args.slopes = slopes.defined() ? slopes.const_data_ptr<float>() : nullptr;
  args.out = out.mutable_data_ptr();
  const at::Tensor partial = scratch(in.q, kernels::decode_scratch(args));
  args.scratch = partial.mutable_data_ptr<float>();
  kernels::decode_attention(element_of(in.q.scalar_type()), args, stream_of(in.q));
  return out;
}

}  // namespace reknit::ops::cuda
