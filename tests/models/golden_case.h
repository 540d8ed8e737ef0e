// A model of tests/golden/models.py, loaded as any Hugging Face folder is.
#pragma once

#include "reknit/models/decoder.h"
#include "reknit/models/name_map.h"
#include "tests/support/device.h"
#include "tests/support/golden.h"
#include "tests/support/plain_source.h"

#include <ATen/ATen.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace reknit {

using Tensors = std::map<std::string, at::Tensor>;

inline const std::vector<std::string> kGoldenCases{
    "opt-125m",      "opt-350m",      "opt-untied",         "gpt2",
    "bloom-4-heads", "bloom-6-heads", "bloom-post-residual"};

/// Value and gradient of every parameter, by group and place.
using PerParam = std::vector<std::vector<at::Tensor>>;

/// Puts tensors with Hugging Face names into the parameters they belong to.
inline PerParam assemble(const std::vector<GroupSpec>& groups, const ModelSpec& spec,
                         const Tensors& tensors) {
  PerParam result;
  for (const GroupSpec& group : groups) {
    std::vector<at::Tensor>& params = result.emplace_back();
    for (const ParamSpec& param : group.params) {
      params.push_back(at::zeros(param.shape));
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    names.push_back(name);
  }
  const std::vector<NamePiece> pieces = name_map(spec);
  const std::vector<std::string> found = match_names(pieces, names);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const NamePiece& piece = pieces[i];
    if (piece.optional) {
      continue;
    }
    const at::Tensor value = tensors.at(found[i]);
    result[piece.group][piece.param]
        .narrow(0, piece.row_begin, piece.row_end - piece.row_begin)
        .copy_(piece.transposed ? value.t() : value);
  }
  return result;
}

struct GoldenCase {
  explicit GoldenCase(const std::string& name, bool value_head = false)
      : folder(golden_folder("models") / name) {
    std::ifstream config(folder / "config.json");
    spec = ModelSpec::from_hf(nlohmann::json::parse(config));
    spec.value_head = value_head;
    golden = read_tensors(folder / "golden.safetensors");
    weights = read_tensors(folder / (value_head ? "critic.safetensors" : "model.safetensors"));
    const at::Tensor ids = golden.at("tokens");
    tokens.assign(ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + ids.numel());
    const at::Tensor sizes = golden.at("lengths");
    lengths.assign(sizes.data_ptr<int64_t>(), sizes.data_ptr<int64_t>() + sizes.numel());
  }

  /// Gives the parameters of `params` (the decoder's groups) this case's values.
  void fill(PlainSource& params) const {
    const PerParam values = assemble(params.groups(), spec, weights);
    for (size_t g = 0; g < values.size(); ++g) {
      for (size_t p = 0; p < values[g].size(); ++p) {
        params.value(static_cast<GroupId>(g), static_cast<int>(p)).copy_(values[g][p]);
      }
    }
  }

  TokenBatch batch(c10::Device device) const {
    return TokenBatch::of(tokens, lengths, spec, device);
  }

  /// The golden tensors whose names start with `prefix`, without it.
  Tensors with_prefix(const std::string& prefix) const {
    Tensors result;
    for (const auto& [name, tensor] : golden) {
      if (name.starts_with(prefix)) {
        result.emplace(name.substr(prefix.size()), tensor);
      }
    }
    return result;
  }

  std::filesystem::path folder;
  ModelSpec spec;
  Tensors golden;
  Tensors weights;
  std::vector<int64_t> tokens;
  std::vector<int64_t> lengths;
};

/// What fp32 results may differ by from those of another implementation.
inline double fp32_tolerance(c10::Device device) {
  return testing_support::fp32_bound(1e-5, device);
}

/// Largest |a - b|, as a double on the host.
inline double max_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) {
    return 0;
  }
  return (a.cpu().to(at::kDouble) - b.cpu().to(at::kDouble)).abs().max().item<double>();
}

}  // namespace reknit
