#include "reknit/engine/run_export.h"

#include "reknit/base/json_problem.h"
#include "reknit/checkpoint/json_text.h"
#include "reknit/checkpoint/run_folder.h"
#include "reknit/checkpoint/shards.h"
#include "reknit/engine/model_folder.h"
#include "reknit/engine/run_files.h"
#include "reknit/models/decoder.h"

#include <ATen/ATen.h>

#include <filesystem>

namespace reknit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kAverageSuffix = "_ema";

struct Chosen {
  std::string name;  ///< of the saved model
  bool average = false;
};

std::string inside(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

// All files of the folder that is returned are whole.
std::string find_checkpoint(const std::string& path) {
  std::error_code none;
  if (!fs::is_directory(path, none)) {
    throw InputError(str(path, fs::exists(path, none) ? " is no folder" : " does not exist"),
                     "name a checkpoint's folder, or the --out of a run");
  }
  if (has_manifest(path)) {
    for (const auto& [name, record] : read_manifest(path).files) {
      verify_file(path, name, record);
    }
    return path;
  }
  if (auto newest = find_newest_whole(path)) {
    return *newest;
  }
  throw InputError(str(path, " is no checkpoint, and holds none that is whole"),
                   "name a step-NNNNNN folder, or the --out of a run with --save-interval");
}

Chosen choose(const Json& state, const std::string& wanted, const std::string& path) {
  std::string names;
  std::vector<Chosen> all;
  for (const Json& model : state.at("models")) {
    const auto name = model.at("name").get<std::string>();
    all.push_back({name, false});
    names += str(names.empty() ? "" : ", ", name);
    if (model.value("averaged", false)) {
      all.push_back({name, true});
      names += str(", ", name, kAverageSuffix);
    }
  }
  for (const Chosen& one : all) {
    const bool fallback =
        wanted.empty() && !one.average && (one.name == "actor" || state.at("models").size() == 1);
    if (fallback || wanted == one.name + (one.average ? kAverageSuffix : "")) {
      return one;
    }
  }
  throw UsageError(wanted.empty()
                       ? str("the checkpoint ", path, " holds several models: ", names)
                       : str("the checkpoint ", path, " holds no model ", wanted, ", only ", names),
                   "choose one of them with --model");
}

at::ScalarType saved_dtype(const Json& saved) {
  const auto name = saved.at("dtype").get<std::string>();
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    if (name == c10::toString(dtype)) {
      return dtype;
    }
  }
  throw InputError(str("the checkpoint's dtype is ", name, ", which no model has"));
}

/// The pieces of one model's parameters, put together one parameter at a time.
class SavedModel {
 public:
  SavedModel(const Json& saved, const std::string& path, const ModelSpec& spec, bool average)
      : groups_(Decoder(spec).groups()), reader_(files_of(saved, path)), average_(average) {
    size_t next = 0;
    const Json& table = saved.at("parameters");
    for (const GroupSpec& group : groups_) {
      for (const ParamSpec& param : group.params) {
        const Json now = {param.name, param.shape};
        require<InputError>(next < table.size() && table[next].at("name") == now[0] &&
                                table[next].at("shape") == now[1],
                            "the checkpoint ", path,
                            " is of another model than its config.json: ", "parameter ", next,
                            " is not ", param.name, " of shape ", now[1].dump());
        ++next;
      }
    }
  }

  at::Tensor read(const NamePiece& piece) {
    const ParamSpec& wanted = groups_.at(piece.group).params.at(piece.param);
    if (last_ != &wanted) {
      values_ = reader_.whole(wanted, average_);
      last_ = &wanted;
    }
    return stored_of(piece, values_);
  }

 private:
  static std::vector<std::string> files_of(const Json& saved, const std::string& path) {
    std::vector<std::string> files;
    for (const Json& file : saved.at("files")) {
      files.push_back(inside(path, file.get<std::string>()));
    }
    return files;
  }

  std::vector<GroupSpec> groups_;
  ShardReader reader_;
  bool average_;
  const ParamSpec* last_ = nullptr;
  at::Tensor values_;
};

RunExported write_model(const Json& saved, const Chosen& chosen, const RunExport& request,
                        const std::string& path) {
  const std::string texts = inside(path, hf_folder_name(chosen.name));
  if (!fs::exists(inside(texts, "config.json"))) {
    throw InputError(str("the checkpoint ", path, " holds no config.json of ", chosen.name),
                     "it was written by an older version: resume the run and let it save again");
  }
  const Json given = read_json_object(inside(texts, "config.json"));
  ModelSpec spec = ModelSpec::from_hf(given);
  spec.value_head = saved.at("value_head").get<bool>();
  const at::ScalarType dtype = request.dtype.value_or(saved_dtype(saved));
  const std::string generation = inside(texts, "generation_config.json");
  const Json generation_config = fs::exists(generation) ? read_json_object(generation) : Json();

  SavedModel model(saved, path, spec, chosen.average);
  const std::vector<TensorInfo> written = write_model_folder(
      request.out, {spec, given, generation_config, texts, dtype},
      [&](const NamePiece& piece, const ParamSpec&) { return model.read(piece); },
      request.if_present);
  RunExported done{path, request.model, dtype, 0, static_cast<int64_t>(written.size()), 0};
  for (const TensorInfo& info : written) {
    done.elements += info.numel();
  }
  return done;
}

}  // namespace

RunExported export_run(const RunExport& request) {
  const std::string path = find_checkpoint(request.checkpoint);
  keep_checkpoint(path, request.out);
  try {
    const Json state = read_run_state(path);
    const Chosen chosen = choose(state, request.model, path);
    RunExported done =
        write_model(find_saved_model(state, chosen.name, path), chosen, request, path);
    done.model = chosen.name + (chosen.average ? kAverageSuffix : "");
    done.step = state.at("step").get<int64_t>();
    return done;
  } catch (const Json::exception& error) {
    throw InputError(str(path, " is damaged: ", json_problem(error)), "name another checkpoint");
  }
}

}  // namespace reknit
