#include "reknit/models/head.h"

#include "reknit/models/groups.h"

namespace reknit {

at::Tensor head_forward(const ModelSpec& spec, const Full& params, const at::Tensor& x,
                        HeadSaved* saved) {
  const HeadParams at_head = HeadParams::of(spec);
  HeadSaved local;
  HeadSaved& keep = saved != nullptr ? *saved : local;
  at::Tensor hidden = x;
  if (at_head.norm_weight >= 0) {
    keep.norm_input = x;
    keep.normed =
        ops::layer_norm(x, params[at_head.norm_weight], params[at_head.norm_bias], spec.norm_eps);
    hidden = keep.normed.y;
  }
  if (at_head.project_out >= 0) {
    keep.project_input = hidden;
    hidden = ops::linear(hidden, params[at_head.project_out], {});
  }
  return hidden;
}

at::Tensor head_backward(const ModelSpec& spec, const Full& params, Gradients& gradients,
                         const at::Tensor& d_hidden, HeadSaved saved) {
  const HeadParams at_head = HeadParams::of(spec);
  at::Tensor d = d_hidden;
  if (at_head.project_out >= 0) {
    d = ops::linear_backward(d, saved.project_input, params[at_head.project_out],
                             gradients[at_head.project_out], {});
  }
  if (at_head.norm_weight >= 0) {
    d = ops::layer_norm_backward(d, saved.norm_input, saved.normed, params[at_head.norm_weight],
                                 gradients[at_head.norm_weight], gradients[at_head.norm_bias]);
  }
  return d;
}

}  // namespace reknit
