#include "reknit/models/block.h"

#include "reknit/models/groups.h"

#include <cmath>

namespace reknit {
namespace {

/// Norm and residual around one branch; `norm_weight` is the place of its weight, its
/// bias is the next.
class Residual {
 public:
  Residual(const ModelSpec& spec, const Full& params, int norm_weight)
      : spec_(spec), params_(params), norm_weight_(norm_weight) {}

  /// Gives up what branch_input() computes again.
  void drop_normed(ResidualSaved& saved) const {
    if (norms_again(spec_)) {
      saved.branch_input.reset();
      saved.normed.y.reset();
    }
  }

  /// What the branch read, bit for bit, in the backward.
  at::Tensor branch_input(const ResidualSaved& saved) const {
    return saved.branch_input.defined() ? saved.branch_input
                                        : ops::layer_norm(saved.norm_input, params_[norm_weight_],
                                                          params_[norm_weight_ + 1], spec_.norm_eps)
                                              .y;
  }

  /// -> what the branch reads.
  at::Tensor enter(const at::Tensor& x, ResidualSaved& saved) const {
    saved.branch_input = spec_.norm_before ? norm(x, saved) : x;
    return saved.branch_input;
  }

  /// `branch` is new memory of ours -> the sublayer's output.
  at::Tensor leave(const at::Tensor& x, at::Tensor branch, ResidualSaved& saved) const {
    branch.add_(source(x, saved));
    return finish(std::move(branch), saved);
  }

  /// What is added to the branch, and what becomes of the sum: leave() in two.
  const at::Tensor& source(const at::Tensor& x, const ResidualSaved& saved) const {
    return spec_.norm_before && spec_.residual_after_norm ? saved.branch_input : x;
  }
  at::Tensor finish(at::Tensor sum, ResidualSaved& saved) const {
    return spec_.norm_before ? sum : norm(sum, saved);
  }

  /// -> gradient of the sum of residual and branch.
  at::Tensor leave_backward(const at::Tensor& d_y, ResidualSaved& saved,
                            const Gradients& gradients) const {
    return spec_.norm_before ? d_y : norm_backward(d_y, saved, gradients);
  }

  /// `d_branch_input` is new memory of ours -> gradient of the sublayer's input.
  at::Tensor enter_backward(const at::Tensor& d_sum, at::Tensor d_branch_input,
                            ResidualSaved& saved, const Gradients& gradients) const {
    saved.branch_input.reset();
    if (!spec_.norm_before) {
      return d_branch_input.add_(d_sum);
    }
    if (spec_.residual_after_norm) {
      return norm_backward(d_branch_input.add_(d_sum), saved, gradients);
    }
    return norm_backward(d_branch_input, saved, gradients, d_sum);
  }

 private:
  at::Tensor norm(const at::Tensor& x, ResidualSaved& saved) const {
    saved.norm_input = x;
    saved.normed =
        ops::layer_norm(x, params_[norm_weight_], params_[norm_weight_ + 1], spec_.norm_eps);
    return saved.normed.y;
  }

  at::Tensor norm_backward(const at::Tensor& d_y, ResidualSaved& saved, const Gradients& gradients,
                           const at::Tensor& d_residual = {}) const {
    at::Tensor d_x =
        ops::layer_norm_backward(d_y, saved.norm_input, saved.normed, params_[norm_weight_],
                                 gradients[norm_weight_], gradients[norm_weight_ + 1], d_residual);
    saved.norm_input.reset();
    saved.normed = {};
    return d_x;
  }

  const ModelSpec& spec_;
  const Full& params_;
  int norm_weight_;
};

/// The linear map whose weight is at `weight` and whose bias is the next parameter.
at::Tensor linear(const at::Tensor& x, const Full& params, int weight) {
  return ops::linear(x, params[weight], params[weight + 1]);
}

at::Tensor linear_backward(const at::Tensor& d_y, const at::Tensor& x, const Full& params,
                           const Gradients& gradients, int weight) {
  return ops::linear_backward(d_y, x, params[weight], gradients[weight], gradients[weight + 1]);
}

at::Tensor mlp_backward(const ModelSpec& spec, const Full& params, const Gradients& gradients,
                        const Residual& around, const at::Tensor& d_out, BlockSaved& saved) {
  at::Tensor activated = std::move(saved.activated);
  // A ReLU's result is positive exactly where its input is.
  at::Tensor before = saved.fc1_out.defined() ? std::move(saved.fc1_out) : activated;
  if (!activated.defined()) {
    activated = ops::activation(before, spec.activation);
  }
  at::Tensor d_activated = linear_backward(d_out, activated, params, gradients, kFc2Weight);
  activated.reset();
  const at::Tensor d_before = ops::activation_backward(std::move(d_activated), before,
                                                       spec.activation, gradients[kFc1Bias]);
  before.reset();
  return ops::linear_backward(d_before, around.branch_input(saved.mlp), params[kFc1Weight],
                              gradients[kFc1Weight], {});
}

/// The end of a branch, whose last map's weight is at `weight`: joined with its residual, in
/// one step where no sum over ranks and no dropout stands between.
template <class Reduced>
at::Tensor leave_branch(const Residual& around, const at::Tensor& x, const at::Tensor& branch,
                        const Full& params, int weight, bool in_one, ResidualSaved& saved,
                        Reduced&& reduced) {
  if (in_one) {
    return around.finish(
        ops::linear_add(branch, params[weight], params[weight + 1], around.source(x, saved)),
        saved);
  }
  return around.leave(x, reduced(linear(branch, params, weight)), saved);
}

/// -> the sum after attention, what the MLP's residual adds to.
at::Tensor up_to_activation(const ModelSpec& spec, const Full& params, const at::Tensor& x,
                            const Attend& attend, const BlockReduce& reduce,
                            const BlockDropout& dropout, BlockSaved& keep) {
  const Residual around_attn(spec, params, kAttnNormWeight);
  keep.qkv = linear(around_attn.enter(x, keep.attn), params, kQkvWeight);
  keep.attention = attend(keep.qkv);
  at::Tensor middle = leave_branch(
      around_attn, x, keep.attention.out, params, kAttnOutWeight,
      reduce.is_identity() && !dropout.after_attention.on(), keep.attn, [&](at::Tensor branch) {
        return ops::dropout(reduce.after_attention(std::move(branch)), dropout.after_attention);
      });

  const Residual around_mlp(spec, params, kMlpNormWeight);
  const at::Tensor in = around_mlp.enter(middle, keep.mlp);
  if (spec.activation == ops::Activation::kRelu) {
    keep.activated =
        ops::linear_activation(in, params[kFc1Weight], params[kFc1Bias], spec.activation);
  } else {
    keep.fc1_out = linear(in, params, kFc1Weight);
    keep.activated = ops::activation(keep.fc1_out, spec.activation);
  }
  return middle;
}

/// Of the MLP's two wide tensors one is enough, and norms are cheap to compute again; see
/// BlockSaved.
void drop_redundant(const ModelSpec& spec, const Full& params, BlockSaved& saved) {
  Residual(spec, params, kAttnNormWeight).drop_normed(saved.attn);
  Residual(spec, params, kMlpNormWeight).drop_normed(saved.mlp);
  if (saved.fc1_out.defined()) {
    saved.activated.reset();
  }
}

/// block_forward where nothing is kept and no reduction stands between a product and what
/// comes after it.
at::Tensor block_infer(const ModelSpec& spec, const Full& params, const at::Tensor& x,
                       const Attend& attend) {
  const auto sum = [&](const at::Tensor& branch, int weight, const at::Tensor& source) {
    return ops::linear_add(branch, params[weight], params[weight + 1], source);
  };
  const Residual around_attn(spec, params, kAttnNormWeight);
  ResidualSaved attn;
  const at::Tensor attended = attend(linear(around_attn.enter(x, attn), params, kQkvWeight)).out;
  const at::Tensor middle =
      around_attn.finish(sum(attended, kAttnOutWeight, around_attn.source(x, attn)), attn);

  const Residual around_mlp(spec, params, kMlpNormWeight);
  ResidualSaved mlp;
  const at::Tensor activated = ops::linear_activation(
      around_mlp.enter(middle, mlp), params[kFc1Weight], params[kFc1Bias], spec.activation);
  return around_mlp.finish(sum(activated, kFc2Weight, around_mlp.source(middle, mlp)), mlp);
}

}  // namespace

double attention_scale(const ModelSpec& spec) {
  return 1.0 / std::sqrt(static_cast<double>(spec.head_dim()));
}

at::Tensor block_forward(const ModelSpec& spec, const Full& params, const at::Tensor& x,
                         const Attend& attend, const BlockReduce& reduce, BlockSaved* saved,
                         const BlockDropout& dropout) {
  if (saved == nullptr && reduce.is_identity() && !dropout.on_branches()) {
    return block_infer(spec, params, x, attend);
  }
  BlockSaved local;
  BlockSaved& keep = saved != nullptr ? *saved : local;
  const at::Tensor middle = up_to_activation(spec, params, x, attend, reduce, dropout, keep);
  at::Tensor y = leave_branch(
      Residual(spec, params, kMlpNormWeight), middle, keep.activated, params, kFc2Weight,
      reduce.is_identity() && !dropout.after_mlp.on(), keep.mlp, [&](at::Tensor branch) {
        return ops::dropout(reduce.after_mlp(std::move(branch)), dropout.after_mlp);
      });
  drop_redundant(spec, params, keep);
  return y;
}

BlockSaved block_recompute(const ModelSpec& spec, const Full& params, const at::Tensor& x,
                           const Attend& attend, const BlockReduce& reduce,
                           const BlockDropout& dropout) {
  BlockSaved saved;
  if (spec.norm_before) {
    up_to_activation(spec, params, x, attend, reduce, dropout, saved);
    drop_redundant(spec, params, saved);
  } else {  // the last norm reads the sum
    block_forward(spec, params, x, attend, reduce, &saved, dropout);
  }
  return saved;
}

at::Tensor block_backward(const ModelSpec& spec, const Full& params, Gradients& gradients,
                          const at::Tensor& d_y, BlockSaved saved, const ops::Packing& packing,
                          const at::Tensor& slopes, const BlockDropout& dropout) {
  const Residual around_mlp(spec, params, kMlpNormWeight);
  at::Tensor d_sum = around_mlp.leave_backward(d_y, saved.mlp, gradients);
  at::Tensor d_branch = mlp_backward(spec, params, gradients, around_mlp,
                                     ops::dropout(d_sum, dropout.after_mlp), saved);
  const at::Tensor d_middle =
      around_mlp.enter_backward(d_sum, std::move(d_branch), saved.mlp, gradients);

  const Residual around_attn(spec, params, kAttnNormWeight);
  d_sum = around_attn.leave_backward(d_middle, saved.attn, gradients);
  const at::Tensor d_attention =
      linear_backward(ops::dropout(d_sum, dropout.after_attention), saved.attention.out, params,
                      gradients, kAttnOutWeight);
  const at::Tensor d_qkv =
      ops::attention_backward(d_attention, saved.qkv, saved.attention, spec.head_layout(), packing,
                              attention_scale(spec), slopes, dropout.attention);
  saved.qkv.reset();
  saved.attention = {};
  d_branch =
      linear_backward(d_qkv, around_attn.branch_input(saved.attn), params, gradients, kQkvWeight);
  return around_attn.enter_backward(d_sum, std::move(d_branch), saved.attn, gradients);
}

}  // namespace reknit
