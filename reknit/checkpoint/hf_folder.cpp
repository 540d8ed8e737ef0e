// A Hugging Face model folder: its configuration, and its tensors whatever the form.
#include "reknit/checkpoint/hf_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <variant>

#include "reknit/base/error.h"
#include "reknit/base/log.h"
#include "reknit/base/mapped_file.h"
#include "reknit/checkpoint/json_text.h"
#include "reknit/checkpoint/pickle.h"
#include "reknit/checkpoint/safetensors.h"
#include "reknit/text/tokenizer.h"

namespace reknit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using WeightFile = std::variant<SafetensorsFile, TorchFile>;

constexpr const char* kConfig = "config.json";
constexpr const char* kGenerationConfig = "generation_config.json";
constexpr const char* kWeightFiles[] = {"model.safetensors", "model.safetensors.index.json",
                                        "pytorch_model.bin", "pytorch_model.bin.index.json"};
std::string in_folder(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

bool is_index(const std::string& name) {
  return name.ends_with(".index.json");
}

// "a, b, c and 7 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  return names.size() > kShown ? str(text, " and ", names.size() - kShown, " more") : text;
}

WeightFile open_weights(const std::string& path) {
  if (path.ends_with(".safetensors")) {
    return WeightFile(std::in_place_type<SafetensorsFile>, path);
  }
  return WeightFile(std::in_place_type<TorchFile>, path);
}

const std::vector<TensorInfo>& tensors_of(const WeightFile& file) {
  return std::visit(
      [](const auto& form) -> const auto& { return form.tensors(); }, file);
}

// Where the index places each tensor; file names that leave the folder are refused.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const Json index = read_json_object(path);
  require<InputError>(index.contains("weight_map") && index["weight_map"].is_object(), path,
                      " has no object weight_map");
  std::map<std::string, std::string> places;
  for (const auto& [name, file] : index["weight_map"].items()) {
    require<InputError>(file.is_string(), path, " places ", name, " in ", json_excerpt(file));
    const auto& text = file.get_ref<const std::string&>();
    const bool known = text.ends_with(".safetensors") || text.ends_with(".bin");
    require<InputError>(known && text.find('/') == std::string::npos, path, " places ", name,
                        " in ", json_excerpt(file), ", which is no weight file of this folder");
    places.emplace(name, text);
  }
  require<InputError>(!places.empty(), path, " places no tensor");
  return places;
}

void check_files(const std::string& folder, const std::string& index,
                 const std::map<std::string, std::string>& places) {
  std::map<std::string, size_t> counts;
  for (const auto& [name, file] : places) {
    ++counts[file];
  }
  std::vector<std::string> missing;
  size_t lost = 0;
  for (const auto& [file, count] : counts) {
    if (!fs::exists(in_folder(folder, file))) {
      missing.push_back(str(file, " (", count, count == 1 ? " tensor)" : " tensors)"));
      lost += count;
    }
  }
  if (missing.empty()) {
    return;
  }
  std::vector<std::string> tensors;
  for (const auto& [name, file] : places) {
    if (!fs::exists(in_folder(folder, file))) {
      tensors.push_back(name);
    }
  }
  throw InputError(
      str(folder, " lacks ", missing.size(), " of the ", counts.size(), " files that ", index,
          " names: ", listed(missing), "; with ", missing.size() == 1 ? "it" : "them", " it lacks ",
          lost, " of ", places.size(), " tensors: ", listed(tensors)),
      "fetch the missing files; nothing was loaded");
}

bool folder_exists(const fs::path& path) {
  std::error_code ignored;  // what cannot be looked at is no folder to us
  return fs::is_directory(path, ignored);
}

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string path = from_environment(name); !path.empty()) {
      return path;
    }
  }
  if (const std::string home = from_environment("HF_HOME"); !home.empty()) {
    return fs::path(home) / "hub";
  }
  const std::string cache = from_environment("XDG_CACHE_HOME");
  const fs::path base =
      cache.empty() ? fs::path(from_environment("HOME")) / ".cache" : fs::path(cache);
  return base / "huggingface" / "hub";
}

// "name" or "owner/name" in the characters that the hub allows.
bool is_model_name(const std::string& text) {
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' ||
           c == '/';
  };
  return !text.empty() && text.front() != '/' && text.front() != '.' && text.back() != '/' &&
         text.find("..") == std::string::npos && std::count(text.begin(), text.end(), '/') <= 1 &&
         std::all_of(text.begin(), text.end(), allowed);
}

std::string read_revision(const fs::path& path) {
  const auto file = MappedFile::open(path.string());
  std::string text(file->bytes().substr(0, 256));
  text.erase(std::remove_if(text.begin(), text.end(),
                            [](char c) { return c == '\n' || c == '\r' || c == ' '; }),
             text.end());
  return text;
}

}  // namespace

struct HfFolder::State {
  struct Place {
    size_t file;
    const TensorInfo* info;
  };

  std::string path;
  Json config;
  Json generation_config;
  std::vector<WeightFile> files;
  std::vector<TensorInfo> tensors;
  std::unordered_map<std::string, Place> places;
  std::vector<std::string> unlisted;

  void open_one(const std::string& file);
  void open_indexed(const std::string& index);
  void throw_misplaced(const std::string& index,
                       const std::map<std::string, std::string>& weight_map,
                       const std::vector<std::string>& names) const;
};

void HfFolder::State::open_one(const std::string& file) {
  files.push_back(open_weights(in_folder(path, file)));
  tensors = tensors_of(files.back());
  for (const TensorInfo& info : tensors) {
    places.emplace(info.name, Place{0, &info});
  }
}

void HfFolder::State::open_indexed(const std::string& index) {
  const auto weight_map = read_weight_map(in_folder(path, index));
  check_files(path, index, weight_map);
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) {
    names.insert(file);
  }
  std::vector<size_t> file_of;
  for (const std::string& name : names) {
    files.push_back(open_weights(in_folder(path, name)));
    for (const TensorInfo& info : tensors_of(files.back())) {
      const auto listed_place = weight_map.find(info.name);
      if (listed_place == weight_map.end() || listed_place->second != name) {
        unlisted.push_back(str(info.name, " (", name, ")"));
        continue;
      }
      tensors.push_back(info);
      file_of.push_back(files.size() - 1);
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    places.emplace(tensors[i].name, Place{file_of[i], &tensors[i]});
  }
  std::vector<std::string> misplaced;
  for (const auto& [tensor, file] : weight_map) {
    if (places.count(tensor) == 0) {
      misplaced.push_back(tensor);
    }
  }
  if (!misplaced.empty()) {
    throw_misplaced(index, weight_map, misplaced);
  }
  if (!unlisted.empty()) {
    log_warning("not used, because ", in_folder(path, index),
                " does not place it there: ", listed(unlisted));
  }
}

void HfFolder::State::throw_misplaced(const std::string& index,
                                      const std::map<std::string, std::string>& weight_map,
                                      const std::vector<std::string>& names) const {
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    std::string found = "is in no file";
    for (const std::string& place : unlisted) {
      if (place.starts_with(name + " (")) {
        found = "is in " + place.substr(name.size() + 2, place.size() - name.size() - 3);
      }
    }
    lines.push_back(str(name, " (named in ", weight_map.at(name), ", ", found, ")"));
  }
  throw InputError(
      str(in_folder(path, index), " places ", names.size(),
          names.size() == 1 ? " tensor" : " tensors", " in a file without it: ", listed(lines)),
      "the index and the files are of different exports; nothing was loaded");
}

HfFolder::HfFolder(const std::string& path_or_name) {
  auto state = std::make_shared<State>();
  state->path = find_hf_folder(path_or_name);
  state->config = read_json_object(in_folder(state->path, kConfig));
  if (fs::exists(in_folder(state->path, kGenerationConfig))) {
    state->generation_config = read_json_object(in_folder(state->path, kGenerationConfig));
  }
  const auto found =
      std::find_if(std::begin(kWeightFiles), std::end(kWeightFiles),
                   [&](const char* name) { return fs::exists(in_folder(state->path, name)); });
  require<InputError>(found != std::end(kWeightFiles), state->path,
                      " has no weights: none of model.safetensors, model.safetensors.index.json, "
                      "pytorch_model.bin, pytorch_model.bin.index.json is there");
  if (is_index(*found)) {
    state->open_indexed(*found);
  } else {
    state->open_one(*found);
  }
  state_ = std::move(state);
}

HfFolder HfFolder::without_weights(const Json& config, const std::string& tokenizer_folder) {
  auto state = std::make_shared<State>();
  state->path = tokenizer_folder;
  state->config = config;
  return HfFolder(std::shared_ptr<const State>(std::move(state)));
}

const std::string& HfFolder::path() const {
  return state_->path;
}
const Json& HfFolder::config() const {
  return state_->config;
}
const Json& HfFolder::generation_config() const {
  return state_->generation_config;
}
const std::vector<TensorInfo>& HfFolder::tensors() const {
  return state_->tensors;
}

const TensorInfo* HfFolder::find(const std::string& name) const {
  const auto place = state_->places.find(name);
  return place == state_->places.end() ? nullptr : place->second.info;
}

at::Tensor HfFolder::read(const std::string& name) const {
  const auto place = state_->places.find(name);
  require<InputError>(place != state_->places.end(), state_->path, " has no tensor ", name);
  return std::visit([&](const auto& file) { return file.read(name); },
                    state_->files[place->second.file]);
}

std::string find_hf_folder(const std::string& path_or_name) {
  if (folder_exists(path_or_name)) {
    return path_or_name;
  }
  require<InputError>(!fs::exists(path_or_name), path_or_name, " is a file, not a model folder");
  require<InputError>(!path_or_name.ends_with(".json"), "there is no file ", path_or_name);
  require<InputError>(is_model_name(path_or_name), "there is no folder ", path_or_name);
  std::string name = path_or_name;
  if (const size_t slash = name.find('/'); slash != std::string::npos) {
    name.replace(slash, 1, "--");
  }
  const fs::path model = cache_folder() / ("models--" + name);
  const std::string help = str("fetch it with: hf download ", path_or_name);
  if (!folder_exists(model)) {
    throw InputError(str("there is no folder ", path_or_name,
                         ", and the local Hugging Face cache has no ", model.string()),
                     help);
  }
  const fs::path reference = model / "refs" / "main";
  if (!fs::exists(reference)) {
    throw InputError(str("the cached model ", model.string(), " has no refs/main"), help);
  }
  const fs::path snapshot = model / "snapshots" / read_revision(reference);
  if (!folder_exists(snapshot)) {
    throw InputError(str("the cached model ", model.string(), " has no ", snapshot.string(),
                         ", which its refs/main names"),
                     help);
  }
  return snapshot.string();
}

namespace {

// The shards as runs [first, last) of the tensors, none larger than the limit
// unless one tensor alone is.
std::vector<std::pair<size_t, size_t>> split_shards(const std::vector<TensorInfo>& tensors,
                                                    int64_t max_bytes) {
  std::vector<std::pair<size_t, size_t>> shards{{0, 0}};
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i > shards.back().first && bytes + tensors[i].bytes() > max_bytes) {
      shards.emplace_back(i, i);
      bytes = 0;
    }
    bytes += tensors[i].bytes();
    shards.back().second = i + 1;
  }
  return shards;
}

std::string shard_name(size_t shard, size_t count) {
  if (count == 1) {
    return "model.safetensors";
  }
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", shard + 1, count);
  return name;
}

void write_json(const std::string& path, const Json& value) {
  write_file(path, value.dump(2) + "\n");
}

}  // namespace

std::vector<std::string> write_hf_texts(const std::string& folder, const Json& config,
                                        const Json& generation_config,
                                        const std::string& tokenizer_folder) {
  std::error_code none;  // the files say what cannot be written
  fs::create_directories(folder, none);
  std::vector<std::string> names{kConfig};
  write_json(in_folder(folder, kConfig), config);
  if (!generation_config.is_null()) {
    names.emplace_back(kGenerationConfig);
    write_json(in_folder(folder, kGenerationConfig), generation_config);
  }
  if (!tokenizer_folder.empty()) {
    for (const fs::path& file : tokenizer_files(tokenizer_folder)) {
      names.push_back(file.string());
      fs::create_directories((folder / file).parent_path(), none);
      copy_file(in_folder(tokenizer_folder, names.back()), in_folder(folder, names.back()));
    }
  }
  return names;
}

void write_hf_folder(const std::string& path, const HfFolderContents& contents,
                     const std::function<at::Tensor(const TensorInfo&)>& read,
                     IfPresent if_present) {
  REKNIT_INVARIANT(contents.config != nullptr, path, " is to be written without a config");
  AtomicFolder folder(path, if_present);
  const auto inside = [&](const std::string& name) { return in_folder(folder.aside(), name); };
  write_hf_texts(folder.aside(), *contents.config,
                 contents.generation_config == nullptr ? Json() : *contents.generation_config,
                 contents.tokenizer_folder);
  const auto shards = split_shards(contents.tensors, contents.max_shard_bytes);
  Json weight_map = Json::object();
  int64_t total = 0;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    const std::string name = shard_name(shard, shards.size());
    const auto first = contents.tensors.begin() + static_cast<std::ptrdiff_t>(shards[shard].first);
    const auto last = contents.tensors.begin() + static_cast<std::ptrdiff_t>(shards[shard].second);
    SafetensorsWriter writer(inside(name), std::vector<TensorInfo>(first, last));
    for (auto info = first; info != last; ++info) {
      writer.write(info->name, read(*info));
      weight_map[info->name] = name;
      total += info->bytes();
    }
    writer.commit();
  }
  if (shards.size() > 1) {
    write_json(inside("model.safetensors.index.json"),
               {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}});
  }
  folder.commit();
}

}  // namespace reknit
