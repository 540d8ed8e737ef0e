// reknit init: a Hugging Face folder with random weights from a config.json.
#include "apps/commands.h"
#include "apps/progress.h"
#include "reknit/checkpoint/hf_config.h"
#include "reknit/checkpoint/json_text.h"
#include "reknit/engine/model_folder.h"
#include "reknit/models/init_values.h"

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <iostream>

namespace reknit {
namespace {

namespace fs = std::filesystem;

}  // namespace

int run_init(const InitOptions& options) {
  const nlohmann::json given = read_json_object(options.config_json);
  ModelSpec spec = ModelSpec::from_hf(given);
  spec.value_head = options.value_head;
  const at::ScalarType dtype = scalar_type(options.dtype);
  const fs::path beside = fs::absolute(options.config_json).parent_path();
  const fs::path generation = beside / "generation_config.json";
  const nlohmann::json generation_config =
      fs::exists(generation) ? read_json_object(generation.string()) : nlohmann::json();

  std::vector<TensorInfo> tensors;
  {
    Progress progress("tensors", static_cast<int64_t>(stored_pieces(spec).size()), stderr);
    int64_t done = 0;
    tensors = write_model_folder(
        options.out, {spec, given, generation_config, beside.string(), dtype},
        [&](const NamePiece& piece, const ParamSpec& param) {
          progress.advance(done++);
          return init_values(spec, param, piece, static_cast<uint64_t>(options.seed));
        },
        options.overwrite ? IfPresent::kReplace : IfPresent::kRefuse);
  }
  int64_t elements = 0;
  for (const TensorInfo& info : tensors) {
    elements += info.numel();
  }
  std::cout << options.out << ": " << spec.model_type << ", " << elements << " elements in "
            << tensors.size() << " tensors, seed " << options.seed << ", "
            << to_string(options.dtype) << "\n";
  return 0;
}

}  // namespace reknit
