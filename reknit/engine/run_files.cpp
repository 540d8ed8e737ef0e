#include "reknit/engine/run_files.h"

#include "reknit/base/error.h"
#include "reknit/checkpoint/json_text.h"

#include <filesystem>

namespace reknit {

using Json = nlohmann::json;

std::string shard_file_name(const std::string& model, int shard) {
  std::string digits = std::to_string(shard);
  digits.insert(0, digits.size() < 5 ? 5 - digits.size() : 0, '0');
  return model + "." + digits + ".safetensors";
}

std::string hf_folder_name(const std::string& model) {
  return model + ".hf";
}

ShardExtras extras_of(const RunModel& model) {
  return {model.trainer == nullptr ? nullptr : &model.trainer->optimizer(), model.averages};
}

Json trainer_json(Trainer* trainer) {
  if (trainer == nullptr) {
    return nullptr;
  }
  const Trainer::State state = trainer->state();
  return {{"steps", state.steps},
          {"applied", state.applied},
          {"optimizer", trainer->optimizer().name()},
          {"scaler",
           {{"scale", state.scaler.scale},
            {"step", state.scaler.step},
            {"last_overflow", state.scaler.last_overflow},
            {"hysteresis", state.scaler.hysteresis}}}};
}

Trainer::State trainer_state(const Json& json) {
  const Json& scaler = json.at("scaler");
  return {json.at("steps").get<int64_t>(),
          json.at("applied").get<int64_t>(),
          {scaler.at("scale").get<double>(), scaler.at("step").get<int64_t>(),
           scaler.at("last_overflow").get<int64_t>(), scaler.at("hysteresis").get<int>()}};
}

Json read_run_state(const std::string& path) {
  Json state = read_json_object((std::filesystem::path(path) / kStateName).string());
  require<InputError>(state.value("format", "") == kRunFormat, path, " is no checkpoint of a run");
  require<InputError>(state.at("version") == kRunVersion, path, " has format version ",
                      state.at("version").dump(), ", this program reads ", kRunVersion);
  return state;
}

const Json& find_saved_model(const Json& state, const std::string& name, const std::string& path) {
  std::string names;
  for (const Json& model : state.at("models")) {
    if (model.at("name") == name) {
      return model;
    }
    names += str(names.empty() ? "" : ", ", model.at("name").get<std::string>());
  }
  throw InputError(str("the checkpoint ", path, " holds no model ", name, ", only ", names),
                   "resume with the command that has written it");
}

}  // namespace reknit
