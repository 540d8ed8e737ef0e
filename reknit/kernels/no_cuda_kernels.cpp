// Stands in for the CUDA kernels in a build without CUDA.
#include "reknit/base/error.h"
#include "reknit/kernels/cuda_path.h"

namespace reknit::ops::cuda {
namespace {

[[noreturn]] void absent() {
  throw UsageError("this build of reknit has no CUDA kernels",
                   "configure with -DREKNIT_CUDA=ON, or run on CPU");
}

}  // namespace

void add_column_sums(const at::Tensor&, const at::Tensor&) {
  absent();
}
std::optional<at::Tensor> skinny_linear(const at::Tensor&, const at::Tensor&,
                                        const SkinnyOptions&) {
  absent();
}
void activation_backward_(const at::Tensor&, const at::Tensor&, Activation, const at::Tensor&) {
  absent();
}
void add_residual(const at::Tensor&, const Param&, const at::Tensor&) {
  absent();
}
Normed layer_norm(const at::Tensor&, const Param&, const Param&, double) {
  absent();
}
at::Tensor layer_norm_backward(const at::Tensor&, const at::Tensor&, const Normed&, const Param&,
                               const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  absent();
}
at::Tensor embedding(const at::Tensor&, const at::Tensor&, int64_t, const at::Tensor&) {
  absent();
}
void embedding_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t) {
  absent();
}

bool fused_attention_takes(const Heads&, const Packing&, const at::Tensor&) {
  absent();
}
AttentionOut fused_attention(const Heads&, const Packing&, double, const at::Tensor&) {
  absent();
}
void fused_attention_backward(const at::Tensor&, const Heads&, const AttentionOut&, const Packing&,
                              double, const at::Tensor&, const Heads&) {
  absent();
}
void cache_prompts(const Heads&, const Packing&, const at::Tensor&, const KvLayer&) {
  absent();
}
at::Tensor attention_decode(const Heads&, const KvLayer&, const at::Tensor&, const at::Tensor&,
                            double, const at::Tensor&) {
  absent();
}

void logprobs(const at::Tensor&, const at::Tensor&, const TokenLogprobs&) {
  absent();
}
at::Tensor logprobs_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, at::ScalarType) {
  absent();
}
Sampled sample(const at::Tensor&, const SampleSettings&, const at::Tensor&, const at::Tensor&,
               const at::Tensor&, int64_t) {
  absent();
}
void keep_drawn(const Sampled&, const DrawState&) {
  absent();
}

void drop_rows(at::ScalarType, const kernels::DropoutRule&, const kernels::DropoutRows&,
               const at::Tensor&) {
  absent();
}

void accumulate(const at::Tensor&, const at::Tensor&) {
  absent();
}
at::Tensor sum_squares(const at::Tensor&, const std::vector<UpdateRange>&) {
  absent();
}
void flat_update(kernels::UpdateRule, const FlatShard&, const kernels::RuleArrays&,
                 const at::Tensor&, const kernels::RuleConstants&,
                 const std::vector<kernels::RuleRange>&) {
  absent();
}

}  // namespace reknit::ops::cuda
