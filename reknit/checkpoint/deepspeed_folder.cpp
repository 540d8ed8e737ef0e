#include "reknit/checkpoint/deepspeed_folder.h"

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>

namespace reknit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModelEnd = "_model_states.pt";
constexpr std::string_view kOptimEnd = "_optim_states.pt";
constexpr const char* kModel = "mp_rank_00_model_states.pt";

std::string inside(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

/// None where there is no such folder.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  require<InputError>(!error || error == std::errc::no_such_file_or_directory ||
                          error == std::errc::not_a_directory,
                      "cannot read ", folder, ": ", error.message());
  std::sort(names.begin(), names.end());
  return names;
}

bool has_model_file(const std::string& folder) {
  const std::vector<std::string> names = names_in(folder);
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.ends_with(kModelEnd) && name.find("mp_rank_") != std::string::npos;
  });
}

constexpr const char* kUniversal = "zero/optimizer_state.pt";
constexpr const char* kLatest = "latest";
constexpr const char* kLatestUniversal = "latest_universal";

/// What the file `name`, kLatest or kLatestUniversal, says; empty: there is none.
std::string tag_in(const std::string& folder, const char* name) {
  const std::string path = inside(folder, name);
  std::error_code none;
  if (!fs::is_regular_file(path, none)) {
    return "";
  }
  const auto file = MappedFile::open(path);
  std::string tag(file->bytes().substr(0, 256));
  tag.erase(tag.find_last_not_of(" \r\n\t") + 1);
  return tag;
}

/// What ds_to_universal wrote: zero/PARAMETER/fp32.pt for each, and one file of what they share.
bool is_universal(const std::string& folder) {
  std::error_code none;
  return fs::is_regular_file(inside(folder, kUniversal), none);
}

void refuse_universal(const std::string& folder, const std::string& file) {
  throw InputError(str(folder, " is a universal checkpoint of DeepSpeed (", file, ")"),
                   "pass the folder that ds_to_universal read: it loads on any number of ranks "
                   "as it is");
}

std::string tag_folder(const std::string& path) {
  if (is_universal(path)) {
    refuse_universal(path, kUniversal);
  }
  if (has_model_file(path)) {
    return path;
  }
  const std::string tag = tag_in(path, kLatest);
  if (tag.empty() && !tag_in(path, kLatestUniversal).empty()) {
    refuse_universal(path, kLatestUniversal);
  }
  require<InputError>(!tag.empty(), path, " is no checkpoint folder of DeepSpeed: it has neither ",
                      kModel, " nor a file named latest");
  const bool plain = tag.find('/') == std::string::npos && tag != "..";
  const std::string folder = inside(path, tag);
  require<InputError>(plain && has_model_file(folder), inside(path, "latest"), " names ", tag,
                      ", and ", folder, " holds no file *", kModelEnd);
  if (is_universal(folder)) {
    refuse_universal(folder, kUniversal);
  }
  return folder;
}

std::string rank_mark(int rank) {
  return str("zero_pp_rank_", rank, "_");
}

/// "zero_pp_rank_3_mp_rank_00", or with a prefix: 3; none: DeepSpeed gives no such name.
std::optional<int> data_rank(const std::string& name) {
  constexpr std::string_view kBefore = "zero_pp_rank_";
  const size_t at = name.find(kBefore);
  if (at == std::string::npos) {
    return std::nullopt;
  }
  int rank = -1;
  std::from_chars(name.data() + at + kBefore.size(), name.data() + name.size(), rank);
  const bool written_so = rank >= 0 && name.find(rank_mark(rank), at) == at;
  return written_so ? std::optional(rank) : std::nullopt;
}

void refuse_other_layouts(const std::string& path, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const size_t at = name.find("mp_rank_");
    const bool ours = name.ends_with(kModelEnd) || name.ends_with(kOptimEnd);
    if (ours && at != std::string::npos && name.substr(at + 8, 2) != "00") {
      throw InputError(str(path, " holds ", name, ": it was written with tensor parallelism"),
                       "merge it with DeepSpeed to a checkpoint without; only data-parallel ones "
                       "are read");
    }
    if (name.starts_with("layer_") && name.ends_with(kModelEnd)) {
      throw InputError(str(path, " holds ", name, ": it was written with pipeline parallelism"),
                       "only data-parallel checkpoints are read");
    }
    if (name.starts_with("expp_rank_") || name.find("_expert_") != std::string::npos) {
      throw InputError(str(path, " holds ", name, ": its model has experts"),
                       "models with experts are not supported");
    }
  }
}

std::string rank_text(int count) {
  return str(count, count == 1 ? " rank" : " ranks");
}

}  // namespace

bool DeepSpeedFolder::is_one(const std::string& path) {
  std::error_code none;
  if (!fs::is_directory(path, none)) {
    return false;
  }
  return has_model_file(path) || is_universal(path) || !tag_in(path, kLatest).empty() ||
         !tag_in(path, kLatestUniversal).empty();
}

DeepSpeedFolder::DeepSpeedFolder(const std::string& path) : path_(tag_folder(path)) {
  open_files();
  read_progress();
  if (stage_ == 0) {
    read_unsharded();
    return;
  }
  Groups groups = named_groups();
  read_paddings(groups);
  for (const auto& file : optims_) {
    const PickleValue& state = file->get(file->root(), "optimizer_state_dict", PickleKind::kDict);
    const char* masters = stage_ == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    const char* optimizer = stage_ == 3 ? "optimizer_state_dict" : "base_optimizer_state";
    read_flats(*file, file->get(state, masters), file->get(state, optimizer));
  }
  if (stage_ == 3) {
    cut_params(groups);
  } else {
    cut_groups(groups);
  }
  read_frozen();
}

void DeepSpeedFolder::open_files() {
  const std::vector<std::string> names = names_in(path_);
  refuse_other_layouts(path_, names);
  std::vector<std::string> optim;
  for (const std::string& name : names) {
    if (name.ends_with(kOptimEnd) && data_rank(name)) {
      optim.push_back(name);
    }
  }
  std::string model = kModel;
  if (!fs::exists(inside(path_, model))) {
    model = str("zero_pp_rank_0_", kModel);
    require<InputError>(fs::exists(inside(path_, model)), path_, " lacks ", model);
  }
  models_.push_back(std::make_unique<DeepSpeedFile>(inside(path_, model)));
  const PickleValue* version = DeepSpeedFile::find(first().root(), "ds_version");
  version_ = version != nullptr && version->kind == PickleKind::kText ? version->text : "unknown";
  if (!optim.empty()) {
    open_sharded(optim);
    return;
  }
  require<InputError>(DeepSpeedFile::find(first().root(), "optimizer") != nullptr, path_,
                      " holds neither a file *", kOptimEnd, " nor an optimizer in ", model);
}

// The files' own number of ranks decides which files there must be.
void DeepSpeedFolder::open_sharded(const std::vector<std::string>& optim_names) {
  std::map<int, std::string> by_rank;
  for (const std::string& name : optim_names) {
    const auto [before, added] = by_rank.emplace(*data_rank(name), name);
    require<InputError>(added, path_, " holds both ", before->second, " and ", name);
  }
  for (const auto& [rank, name] : by_rank) {
    auto file = std::make_unique<DeepSpeedFile>(inside(path_, name));
    const PickleValue& state = file->get(file->root(), "optimizer_state_dict", PickleKind::kDict);
    const PickleValue* stage = DeepSpeedFile::find(state, "zero_stage");
    const PickleValue* counts = &file->get(state, "partition_count");
    int64_t count = 0;
    if (counts->kind == PickleKind::kList) {
      for (const PickleValue* item : counts->items) {
        count = std::max(count, file->integer(*item, "partition_count"));
      }
    } else {
      count = file->integer(*counts, "partition_count");
    }
    const int64_t stage_number = stage == nullptr ? 1 : file->integer(*stage, "zero_stage");
    require<InputError>(stage_number >= 1 && stage_number <= 3 && count >= 1 && count <= 1 << 20,
                        file->path(), " says ZeRO stage ", stage_number, " and ", count, " ranks");
    if (optims_.empty()) {
      stage_ = static_cast<int>(stage_number);
      ranks_ = static_cast<int>(count);
    }
    require<InputError>(stage_number == stage_ && count == ranks_, file->path(), " is of ZeRO-",
                        stage_number, " and ", rank_text(static_cast<int>(count)), ", ",
                        optims_.empty() ? "" : optims_.front()->path(), " of ZeRO-", stage_,
                        " and ", rank_text(ranks_));
    optims_.push_back(std::move(file));
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    std::string name = by_rank.begin()->second;
    const std::string before = rank_mark(by_rank.begin()->first);
    name.replace(name.find(before), before.size(), rank_mark(rank));
    require<InputError>(by_rank.contains(rank), path_, " lacks ", name, ": its files say ",
                        rank_text(ranks_), ", and it holds those of ", by_rank.size());
  }
  require<InputError>(static_cast<int>(by_rank.size()) == ranks_, path_, " holds ",
                      by_rank.rbegin()->second, ", but its files say ", rank_text(ranks_));
}

void DeepSpeedFolder::read_progress() {
  const DeepSpeedFile& file = first();
  const auto count = [&](const char* key) {
    const PickleValue* value = DeepSpeedFile::find(file.root(), key);
    const int64_t number = value == nullptr ? 0 : file.integer(*value, key);
    require<InputError>(number >= 0, file.path(), " has ", number, " as ", key);
    return number;
  };
  progress_.steps = count("global_steps");
  progress_.skipped = count("skipped_steps");
  progress_.samples = count("global_samples");
  require<InputError>(progress_.skipped <= progress_.steps, file.path(), " says that ",
                      progress_.skipped, " of ", progress_.steps, " steps were skipped");
  progress_.optimizer_steps = progress_.steps - progress_.skipped;
  const PickleValue* schedule = DeepSpeedFile::find(file.root(), "lr_scheduler");
  const PickleValue* last =
      schedule == nullptr ? nullptr : DeepSpeedFile::find(*schedule, "last_batch_iteration");
  if (last != nullptr) {
    progress_.scheduled = file.integer(*last, "last_batch_iteration") + 1;
  }
  const std::set<std::string_view> known = {"module",
                                            "buffer_names",
                                            "optimizer",
                                            "param_shapes",
                                            "shared_params",
                                            "frozen_param_shapes",
                                            "lr_scheduler",
                                            "frozen_param_fragments",
                                            "data_sampler",
                                            "random_ltd",
                                            "skipped_steps",
                                            "global_steps",
                                            "sparse_tensor_module_names",
                                            "global_samples",
                                            "dp_world_size",
                                            "mp_world_size",
                                            "ds_config",
                                            "ds_version",
                                            "checkpoint_parallel_dimensions"};
  for (size_t i = 0; i + 1 < file.root().items.size(); i += 2) {
    const PickleValue& key = *file.root().items[i];
    const PickleValue& value = *file.root().items[i + 1];
    if (key.kind == PickleKind::kText && !known.contains(key.text)) {
      progress_.client += str(progress_.client.empty() ? "" : ", ", key.text);
      if (value.kind == PickleKind::kInt) {
        progress_.client += str(" ", value.number);
      }
    }
  }
}

void DeepSpeedFolder::read_scaler(const DeepSpeedFile& file, const PickleValue& optimizer) {
  const PickleValue* object = DeepSpeedFile::find(optimizer, "loss_scaler");
  const PickleValue* values = object == nullptr ? &optimizer : object->state;
  const PickleValue* last =
      values == nullptr ? nullptr : DeepSpeedFile::find(*values, "last_overflow_iter");
  if (last == nullptr) {
    return;  // a fixed scale has none
  }
  DeepSpeedScaler scaler;
  scaler.scale = file.real(file.get(*values, "cur_scale"), "cur_scale");
  scaler.iteration = file.integer(file.get(*values, "cur_iter"), "cur_iter");
  scaler.last_overflow = file.integer(*last, "last_overflow_iter");
  if (const PickleValue* hysteresis = DeepSpeedFile::find(*values, "cur_hysteresis")) {
    scaler.hysteresis = file.integer(*hysteresis, "cur_hysteresis");
  }
  const int64_t hysteresis = scaler.hysteresis.value_or(1);
  require<InputError>(scaler.scale > 0 && std::isfinite(scaler.scale) && scaler.iteration >= 0 &&
                          hysteresis >= 0 && hysteresis <= INT32_MAX,
                      file.path(), " has the loss scale ", scaler.scale, " after ",
                      scaler.iteration, " steps, with the hysteresis ", hysteresis);
  progress_.scaler = scaler;
}

const DeepSpeedFolder::Param& DeepSpeedFolder::param(const std::string& name) const {
  const auto found = index_.find(name);
  require<InputError>(found != index_.end(), path_, " holds no parameter ", name);
  return params_[found->second];
}

std::vector<TensorInfo> DeepSpeedFolder::parameters() const {
  std::vector<TensorInfo> infos;
  for (const Param& param : params_) {
    infos.push_back(param.info);
  }
  return infos;
}

at::Tensor DeepSpeedFolder::joined(const Param& param,
                                   const std::function<const StoredTensor&(const Flat&)>& of) {
  at::Tensor values = at::empty({param.info.numel()}, at::kFloat);
  int64_t at = 0;
  for (const Part& part : param.parts) {
    values.narrow(0, at, part.numel)
        .copy_(part.flat->file->archive()
                   .read(of(*part.flat))
                   .reshape({-1})
                   .narrow(0, part.offset, part.numel));
    at += part.numel;
  }
  return values.reshape(param.info.shape);
}

at::Tensor DeepSpeedFolder::value(const std::string& name) const {
  const Param& found = param(name);
  if (found.trained) {
    return joined(found, [](const Flat& flat) -> const StoredTensor& { return flat.master; });
  }
  std::vector<at::Tensor> pieces;
  for (const auto& [file, stored] : found.fragments) {
    pieces.push_back(file->archive().read(stored).reshape({-1}));
  }
  return at::cat(pieces).narrow(0, 0, found.info.numel()).reshape(found.info.shape);
}

at::Tensor DeepSpeedFolder::state(const std::string& name, const std::string& kind) const {
  const Param& found = param(name);
  require<InputError>(found.trained, path_, " holds ", name, " as frozen, without states");
  return joined(found, [&](const Flat& flat) -> const StoredTensor& {
    const auto stored = flat.states.find(kind);
    require<InputError>(stored != flat.states.end(), flat.file->path(), " holds no state ", kind,
                        " of parameter ", name);
    return stored->second;
  });
}

std::vector<std::string> DeepSpeedFolder::state_kinds() const {
  std::optional<std::set<std::string>> common;
  for (const Param& param : params_) {
    for (const Part& part : param.parts) {
      std::set<std::string> here;
      for (const auto& [kind, stored] : part.flat->states) {
        if (!common || common->contains(kind)) {
          here.insert(kind);
        }
      }
      common = here;
    }
  }
  return common ? std::vector<std::string>(common->begin(), common->end())
                : std::vector<std::string>();
}

}  // namespace reknit
