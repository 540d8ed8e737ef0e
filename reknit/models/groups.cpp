#include "reknit/models/groups.h"

namespace reknit {
namespace {

ParamSpec matrix(const std::string& name, int64_t rows, int64_t columns) {
  return {.name = name, .shape = {rows, columns}};
}

ParamSpec vector_of(const std::string& name, int64_t size) {
  return {.name = name, .shape = {size}, .decay = false};
}

void add_norm(GroupSpec& group, const std::string& name, int64_t size) {
  group.params.push_back(vector_of(name + ".weight", size));
  group.params.push_back(vector_of(name + ".bias", size));
}

void add_linear(GroupSpec& group, const std::string& name, int64_t out, int64_t in) {
  group.params.push_back(matrix(name + ".weight", out, in));
  group.params.push_back(vector_of(name + ".bias", out));
}

GroupSpec embed_params(const ModelSpec& spec) {
  GroupSpec group{.name = "embed"};
  group.params.push_back(matrix("embed.tokens.weight", spec.table_rows(), spec.embed_dim));
  if (spec.position == PositionKind::kLearned) {
    group.params.push_back(
        matrix("embed.positions.weight", spec.max_positions + spec.position_offset, spec.hidden));
  }
  if (spec.embed_dim != spec.hidden) {
    group.params.push_back(matrix("embed.project_in.weight", spec.hidden, spec.embed_dim));
  }
  if (spec.embed_norm) {
    add_norm(group, "embed.norm", spec.hidden);
  }
  return group;
}

GroupSpec block_params(const ModelSpec& spec, int64_t layer) {
  GroupSpec group{.name = "block " + std::to_string(layer)};
  const std::string prefix = "block." + std::to_string(layer) + ".";
  const int64_t head_rows = (spec.heads + 2 * spec.kv_heads) * spec.head_dim();
  add_norm(group, prefix + "attn_norm", spec.hidden);
  add_linear(group, prefix + "qkv", head_rows, spec.hidden);
  add_linear(group, prefix + "attn_out", spec.hidden, spec.heads * spec.head_dim());
  add_norm(group, prefix + "mlp_norm", spec.hidden);
  add_linear(group, prefix + "fc1", spec.ffn, spec.hidden);
  add_linear(group, prefix + "fc2", spec.hidden, spec.ffn);
  return group;
}

GroupSpec head_params(const ModelSpec& spec) {
  GroupSpec group{.name = "head"};
  if (spec.final_norm) {
    add_norm(group, "head.norm", spec.hidden);
  }
  if (spec.embed_dim != spec.hidden) {
    group.params.push_back(matrix("head.project_out.weight", spec.embed_dim, spec.hidden));
  }
  if (spec.value_head) {
    group.params.push_back(matrix("head.value.weight", 1, spec.embed_dim));
  } else if (!spec.tied_head) {
    group.params.push_back(matrix("head.table.weight", spec.table_rows(), spec.embed_dim));
  }
  return group;
}

}  // namespace

EmbedParams EmbedParams::of(const ModelSpec& spec) {
  EmbedParams params;
  int next = params.tokens + 1;
  if (spec.position == PositionKind::kLearned) {
    params.positions = next++;
  }
  if (spec.embed_dim != spec.hidden) {
    params.project_in = next++;
  }
  if (spec.embed_norm) {
    params.norm_weight = next++;
    params.norm_bias = next++;
  }
  return params;
}

HeadParams HeadParams::of(const ModelSpec& spec) {
  HeadParams params;
  int next = 0;
  if (spec.final_norm) {
    params.norm_weight = next++;
    params.norm_bias = next++;
  }
  if (spec.embed_dim != spec.hidden) {
    params.project_out = next++;
  }
  if (spec.value_head) {
    params.value = next++;
  } else if (!spec.tied_head) {
    params.table = next++;
  }
  return params;
}

std::vector<GroupSpec> model_groups(const ModelSpec& spec) {
  std::vector<GroupSpec> groups;
  groups.push_back(embed_params(spec));
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    groups.push_back(block_params(spec, layer));
  }
  groups.push_back(head_params(spec));
  return groups;
}

}  // namespace reknit
