// reknit export: a model out of a checkpoint, as a Hugging Face folder.
#include "reknit/engine/run_export.h"
#include "apps/commands.h"
#include "reknit/base/error.h"
#include "reknit/checkpoint/deepspeed_folder.h"
#include "reknit/checkpoint/hf_config.h"
#include "reknit/checkpoint/json_text.h"
#include "reknit/engine/deepspeed_run.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <iostream>

namespace reknit {
namespace {

namespace fs = std::filesystem;

HfFolder model_of(const std::string& config) {
  if (fs::is_directory(config)) {
    return HfFolder::without_weights(read_json_object((fs::path(config) / "config.json").string()),
                                     config);
  }
  return HfFolder::without_weights(read_json_object(config), "");
}

int export_from_deepspeed(const ExportOptions& options) {
  if (!options.model.empty()) {
    throw UsageError(str("--model ", options.model, ": ", options.checkpoint,
                         " is a DeepSpeed checkpoint, which holds one model"),
                     "leave --model out");
  }
  if (options.model_config.empty()) {
    throw UsageError(str(options.checkpoint,
                         " is a DeepSpeed checkpoint, which does not say what its "
                         "model is"),
                     "pass --model-config with the model's config.json or folder");
  }
  const DeepSpeedFolder folder(options.checkpoint);
  export_deepspeed(folder, model_of(options.model_config),
                   scalar_type(options.dtype.value_or(Precision::kFp32)), options.out,
                   options.overwrite ? IfPresent::kReplace : IfPresent::kRefuse);
  std::cout << options.out << ": the model of " << options.checkpoint << "\n";
  return 0;
}

}  // namespace

int run_export(const ExportOptions& options) {
  if (DeepSpeedFolder::is_one(options.checkpoint)) {
    return export_from_deepspeed(options);
  }
  if (!options.model_config.empty()) {
    throw UsageError(str("--model-config ", options.model_config, ": ", options.checkpoint,
                         " is no DeepSpeed checkpoint"),
                     "leave it out: a checkpoint of reknit says what its models are");
  }
  RunExport request{.checkpoint = options.checkpoint,
                    .out = options.out,
                    .model = options.model,
                    .if_present = options.overwrite ? IfPresent::kReplace : IfPresent::kRefuse};
  if (options.dtype) {
    request.dtype = scalar_type(*options.dtype);
  }
  const RunExported done = export_run(request);
  std::cout << options.out << ": " << done.model << " of step " << done.step << " from "
            << done.checkpoint << ", " << done.elements << " elements in " << done.tensors
            << " tensors, " << c10::toString(done.dtype) << "\n";
  return 0;
}

}  // namespace reknit
