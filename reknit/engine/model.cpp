#include "reknit/engine/model.h"

#include "reknit/base/log.h"
#include "reknit/base/random.h"
#include "reknit/models/name_map.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

constexpr uint64_t kInitPurpose = 0x494e4954;  // "INIT"

// FNV-1a: the key of a parameter's random stream must not change between builds.
uint64_t hash_name(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const unsigned char c : name) {
    hash = (hash ^ c) * 0x100000001b3ull;
  }
  return hash;
}

at::Tensor random_values(const ModelSpec& spec, const ParamSpec& param, uint64_t seed) {
  const int64_t numel = c10::multiply_integers(param.shape);
  switch (init_kind(spec, param)) {
    case InitKind::kZeros:
      return at::zeros({numel}, at::kFloat);
    case InitKind::kOnes:
      return at::ones({numel}, at::kFloat);
    case InitKind::kNormal:
      break;
  }
  at::Tensor values = at::empty({numel}, at::kFloat);
  auto* out = values.mutable_data_ptr<float>();
  const Philox philox{mix(mix(seed, kInitPurpose), hash_name(param.name))};
  const double std = init_std(spec, param);
  for (int64_t i = 0; i < numel; i += 2) {
    const auto pair = normal_pair(philox, static_cast<uint64_t>(i / 2), 0);
    out[i] = static_cast<float>(pair[0] * std);
    if (i + 1 < numel) {
      out[i + 1] = static_cast<float>(pair[1] * std);
    }
  }
  return values;
}

std::vector<int64_t> piece_shape(const Model& model, const NamePiece& piece) {
  std::vector<int64_t> shape = model.store.spec(piece.group).params.at(piece.param).shape;
  shape[0] = piece.row_end - piece.row_begin;
  if (piece.transposed) {
    std::swap(shape[0], shape[1]);
  }
  return shape;
}

bool is_value_head(const Model& model, const NamePiece& piece) {
  return model.decoder.spec().value_head && piece.group == head_group_of(model) &&
         piece.hf_name.find("score.weight") != std::string::npos;
}

void write_piece(Model& model, const NamePiece& piece, const at::Tensor& stored) {
  const at::Tensor values = piece.transposed ? stored.t().contiguous() : stored.contiguous();
  const int64_t row = c10::multiply_integers(values.sizes().slice(1));
  model.store.write(piece.group, piece.param, piece.row_begin * row, values.reshape(-1));
}

}  // namespace

}  // namespace reknit
