// The config.json of a model's folder that is written, whoever writes it.
#include "reknit/checkpoint/hf_config.h"

#include <nlohmann/json.hpp>

#include "reknit/base/error.h"
#include "reknit/models/name_map.h"

namespace reknit {
namespace {

const char* dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      throw UsageError(str("a model cannot be written as ", c10::toString(dtype)),
                       "choose fp32, fp16 or bf16");
  }
}

}  // namespace

at::ScalarType scalar_type(Precision precision) {
  return precision == Precision::kBf16   ? at::kBFloat16
         : precision == Precision::kFp16 ? at::kHalf
                                         : at::kFloat;
}

nlohmann::json written_config(nlohmann::json config, const ModelSpec& spec, at::ScalarType dtype) {
  config.erase("dtype");
  config["torch_dtype"] = dtype_name(dtype);  // the key that transformers 4 and 5 read
  config["architectures"] = {hf_architecture(spec)};
  if (spec.value_head) {
    config["num_labels"] = 1;
    config.erase("id2label");
    config.erase("label2id");
  }
  return config;
}

}  // namespace reknit
