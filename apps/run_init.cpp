// reknit init: a Hugging Face folder with random weights from a config.json.
#include "apps/commands.h"
#include "apps/progress.h"
#include "reknit/base/random.h"
#include "reknit/checkpoint/hf_folder.h"
#include "reknit/checkpoint/json_text.h"
#include "reknit/models/decoder.h"
#include "reknit/models/name_map.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <iostream>
#include <map>

namespace reknit {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPurpose = 0x696e6974;  // "init": keeps these streams apart from others

/// How one tensor of the folder is filled.
struct Filling {
  InitKind kind = InitKind::kZeros;
  double std = 0;
};

struct Plan {
  std::vector<TensorInfo> tensors;
  std::map<std::string, Filling> fillings;
};

uint64_t name_hash(const std::string& name) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

at::ScalarType scalar_type(Precision precision) {
  return precision == Precision::kBf16   ? at::kBFloat16
         : precision == Precision::kFp16 ? at::kHalf
                                         : at::kFloat;
}

Plan plan_tensors(const ModelSpec& spec, at::ScalarType dtype) {
  const std::vector<GroupSpec> groups = Decoder(spec).groups();
  Plan plan;
  for (const NamePiece& piece : name_map(spec)) {
    if (piece.optional) {
      continue;
    }
    const ParamSpec& param = groups.at(piece.group).params.at(piece.param);
    std::vector<int64_t> shape = param.shape;
    shape.at(0) = piece.row_end - piece.row_begin;
    if (piece.transposed) {
      std::swap(shape.at(0), shape.at(1));
    }
    plan.tensors.push_back({piece.hf_name, dtype, shape});
    plan.fillings[piece.hf_name] = {init_kind(spec, param), init_std(spec, param)};
  }
  return plan;
}

/// Normal values that depend on seed, name and place alone.
at::Tensor normal_tensor(const TensorInfo& info, double std, int64_t seed) {
  at::Tensor out = at::empty(info.shape, at::kFloat);
  float* values = out.mutable_data_ptr<float>();
  const int64_t size = out.numel();
  const Philox philox{mix(mix(static_cast<uint64_t>(seed), kPurpose), name_hash(info.name))};
  at::parallel_for(0, (size + 1) / 2, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const std::array<double, 2> normal = normal_pair(philox, static_cast<uint64_t>(pair), 0);
      values[2 * pair] = static_cast<float>(normal[0] * std);
      if (2 * pair + 1 < size) {
        values[2 * pair + 1] = static_cast<float>(normal[1] * std);
      }
    }
  });
  return out.to(info.dtype);
}

at::Tensor fill(const TensorInfo& info, const Filling& filling, int64_t seed) {
  switch (filling.kind) {
    case InitKind::kOnes:
      return at::ones(info.shape, info.dtype);
    case InitKind::kZeros:
      return at::zeros(info.shape, info.dtype);
    case InitKind::kNormal:
      return normal_tensor(info, filling.std, seed);
  }
  return {};
}

nlohmann::json written_config(nlohmann::json config, const ModelSpec& spec, Precision dtype) {
  const std::string name = dtype == Precision::kBf16   ? "bfloat16"
                           : dtype == Precision::kFp16 ? "float16"
                                                       : "float32";
  config.erase("dtype");
  config["torch_dtype"] = name;  // read by transformers 4 and 5
  config["architectures"] = {hf_architecture(spec)};
  if (spec.value_head) {
    config["num_labels"] = 1;
    config.erase("id2label");
    config.erase("label2id");
  }
  return config;
}

}  // namespace

int run_init(const InitOptions& options) {
  const nlohmann::json given = read_json_object(options.config_json);
  ModelSpec spec = ModelSpec::from_hf(given);
  spec.value_head = options.value_head;
  const Plan plan = plan_tensors(spec, scalar_type(options.dtype));
  const fs::path beside = fs::absolute(options.config_json).parent_path();
  const fs::path generation = beside / "generation_config.json";
  const nlohmann::json config = written_config(given, spec, options.dtype);
  const nlohmann::json generation_config =
      fs::exists(generation) ? read_json_object(generation.string()) : nlohmann::json();

  HfFolderContents contents;
  contents.config = &config;
  contents.generation_config = generation_config.is_null() ? nullptr : &generation_config;
  contents.tensors = plan.tensors;
  contents.files_to_copy = tokenizer_files_in(beside.string());
  int64_t elements = 0;
  for (const TensorInfo& info : plan.tensors) {
    elements += info.numel();
  }
  {
    Progress progress("tensors", static_cast<int64_t>(plan.tensors.size()), stderr);
    int64_t done = 0;
    write_hf_folder(
        options.out, contents,
        [&](const TensorInfo& info) {
          progress.advance(done++);
          return fill(info, plan.fillings.at(info.name), options.seed);
        },
        options.overwrite ? IfPresent::kReplace : IfPresent::kRefuse);
  }
  std::cout << options.out << ": " << spec.model_type << ", " << elements << " elements in "
            << plan.tensors.size() << " tensors, seed " << options.seed << ", "
            << to_string(options.dtype) << "\n";
  return 0;
}

}  // namespace reknit
