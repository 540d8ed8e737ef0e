// reknit init: a Hugging Face folder with random weights from a config.json.
#include "apps/commands.h"
#include "apps/progress.h"
#include "reknit/checkpoint/hf_config.h"
#include "reknit/checkpoint/hf_folder.h"
#include "reknit/checkpoint/json_text.h"
#include "reknit/models/decoder.h"
#include "reknit/models/init_values.h"

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <iostream>
#include <map>

namespace reknit {
namespace {

namespace fs = std::filesystem;

/// The folder's tensors and what each of them is.
struct Plan {
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::pair<NamePiece, ParamSpec>> sources;
};

Plan plan_tensors(const ModelSpec& spec, at::ScalarType dtype) {
  const std::vector<GroupSpec> groups = Decoder(spec).groups();
  Plan plan;
  for (const NamePiece& piece : name_map(spec)) {
    if (piece.optional) {
      continue;
    }
    const ParamSpec& param = groups.at(piece.group).params.at(piece.param);
    plan.tensors.push_back({piece.hf_name, dtype, stored_shape(param, piece)});
    plan.sources[piece.hf_name] = {piece, param};
  }
  return plan;
}

}  // namespace

int run_init(const InitOptions& options) {
  const nlohmann::json given = read_json_object(options.config_json);
  ModelSpec spec = ModelSpec::from_hf(given);
  spec.value_head = options.value_head;
  const at::ScalarType dtype = scalar_type(options.dtype);
  const Plan plan = plan_tensors(spec, dtype);
  const fs::path beside = fs::absolute(options.config_json).parent_path();
  const fs::path generation = beside / "generation_config.json";
  const nlohmann::json config = written_config(given, spec, dtype);
  const nlohmann::json generation_config =
      fs::exists(generation) ? read_json_object(generation.string()) : nlohmann::json();

  HfFolderContents contents;
  contents.config = &config;
  contents.generation_config = generation_config.is_null() ? nullptr : &generation_config;
  contents.tensors = plan.tensors;
  contents.tokenizer_folder = beside.string();
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
          const auto& [piece, param] = plan.sources.at(info.name);
          const auto seed = static_cast<uint64_t>(options.seed);
          return init_values(spec, param, piece, seed).to(info.dtype);
        },
        options.overwrite ? IfPresent::kReplace : IfPresent::kRefuse);
  }
  std::cout << options.out << ": " << spec.model_type << ", " << elements << " elements in "
            << plan.tensors.size() << " tensors, seed " << options.seed << ", "
            << to_string(options.dtype) << "\n";
  return 0;
}

}  // namespace reknit
