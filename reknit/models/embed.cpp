#include "reknit/models/embed.h"

#include "reknit/models/groups.h"

namespace reknit {

at::Tensor embed_forward(const ModelSpec& spec, const Full& params, const at::Tensor& tokens,
                         const at::Tensor& positions, EmbedSaved* saved) {
  const EmbedParams at_embed = EmbedParams::of(spec);
  EmbedSaved local;
  EmbedSaved& keep = saved != nullptr ? *saved : local;
  keep.tokens = tokens;
  at::Tensor x = ops::embedding(tokens, params[at_embed.tokens]);
  if (at_embed.project_in >= 0) {
    keep.looked_up = x;
    x = ops::linear(x, params[at_embed.project_in], {});
  }
  if (at_embed.positions >= 0) {
    if (saved != nullptr) {
      keep.position_ids = at::add(positions, spec.position_offset);
    }
    x = ops::embedding(positions, params[at_embed.positions], spec.position_offset, x);
  }
  if (at_embed.norm_weight >= 0) {
    keep.norm_input = x;
    keep.normed =
        ops::layer_norm(x, params[at_embed.norm_weight], params[at_embed.norm_bias], spec.norm_eps);
    x = keep.normed.y;
  }
  return x;
}

void embed_backward(const ModelSpec& spec, const Full& params, Gradients& gradients,
                    const at::Tensor& d_x, EmbedSaved saved) {
  const EmbedParams at_embed = EmbedParams::of(spec);
  at::Tensor d = d_x;
  if (at_embed.norm_weight >= 0) {
    d = ops::layer_norm_backward(d, saved.norm_input, saved.normed, params[at_embed.norm_weight],
                                 gradients[at_embed.norm_weight], gradients[at_embed.norm_bias]);
  }
  if (at_embed.positions >= 0) {
    ops::embedding_backward(d, saved.position_ids, gradients[at_embed.positions]);
  }
  if (at_embed.project_in >= 0) {
    d = ops::linear_backward(d, saved.looked_up, params[at_embed.project_in],
                             gradients[at_embed.project_in], {});
  }
  ops::embedding_backward(d, saved.tokens, gradients[at_embed.tokens], spec.constant_token);
}

}  // namespace reknit
