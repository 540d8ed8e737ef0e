#include "reknit/checkpoint/shards.h"

#include "reknit/base/error.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

constexpr const char* kMaster = "master";
constexpr const char* kAverage = "average";
constexpr const char* kWeight = "weight";

std::string key_of(const std::string& kind, const std::string& param) {
  return kind + ":" + param;
}

int64_t numel_of(const ParamSpec& param) {
  return c10::multiply_integers(param.shape);
}

// The part of the slice that this rank writes. A shard that is whole on every shard rank
// (ZeRO 0) is cut as if it were sharded.
ShardSlice share_of(const ShardSlice& slice, const Store& store, int64_t shard_numel) {
  const Placement& placement = store.settings().placement;
  if (placement.optimizer_shards() == placement.shard_size) {
    return slice;
  }
  const int64_t length = shard_numel / placement.shard_size;
  const Extent mine =
      intersect(slice.extent, {store.shard_index() * length, (store.shard_index() + 1) * length});
  return {slice.param, mine, slice.param_offset + mine.begin - slice.extent.begin};
}

void append(NamedTensors& tensors, const std::string& kind, const ShardSlice& slice,
            const at::Tensor& values) {
  tensors.emplace_back(str(key_of(kind, slice.param->name), "@", slice.param_offset), values);
}

at::Tensor part_of(const at::Tensor& shard, Extent extent) {
  return shard.narrow(0, extent.begin, extent.size());
}

}  // namespace

bool writes_shards(const Store& store) {
  return store.comms().world->rank() < store.settings().placement.shard_size;
}

NamedTensors shard_tensors(Store& store, const ShardExtras& extras, bool with_frozen) {
  NamedTensors tensors;
  if (!writes_shards(store)) {
    return tensors;
  }
  const std::vector<OptimizerShard> trained = store.shards();
  for (size_t i = 0; i < trained.size(); ++i) {
    for (size_t j = 0; j < trained[i].slices.size(); ++j) {
      const ShardSlice& slice = trained[i].slices[j];
      const ShardSlice part = share_of(slice, store, trained[i].master.numel());
      if (part.extent.size() == 0) {
        continue;
      }
      append(tensors, kMaster, part, part_of(trained[i].master, part.extent));
      if (extras.averages != nullptr) {
        append(tensors, kAverage, part, part_of(extras.averages->at(i), part.extent));
      }
      if (extras.optimizer == nullptr) {
        continue;
      }
      const Extent of_slice{part.extent.begin - slice.extent.begin,
                            part.extent.end - slice.extent.begin};
      for (const std::string& name : extras.optimizer->state_names(*slice.param)) {
        append(tensors, name, part, part_of(extras.optimizer->state(i, j, name), of_slice));
      }
    }
  }
  if (with_frozen) {
    for (const OptimizerShard& shard : store.frozen_shards()) {
      for (const ShardSlice& slice : shard.slices) {
        append(tensors, kWeight, slice, part_of(shard.weight, slice.extent));
      }
    }
  }
  return tensors;
}

nlohmann::json parameter_table(const Store& store) {
  nlohmann::json table = nlohmann::json::array();
  for (GroupId group = 0; group < store.num_groups(); ++group) {
    for (const ParamSpec& param : store.spec(group).params) {
      table.push_back(
          {{"name", param.name}, {"shape", param.shape}, {"trainable", param.trainable}});
    }
  }
  return table;
}

void require_same_parameters(const nlohmann::json& table, const Store& store,
                             bool compare_trainable, const std::string& where) {
  const nlohmann::json wanted = parameter_table(store);
  const auto describe = [](const nlohmann::json& list, size_t i) {
    return i >= list.size() ? std::string("nothing")
                            : str(list[i].at("name").get<std::string>(), " of shape ",
                                  list[i].at("shape").dump(),
                                  list[i].at("trainable").get<bool>() ? " (trained)" : " (frozen)");
  };
  for (size_t i = 0; i < std::max(table.size(), wanted.size()); ++i) {
    const bool same = i < table.size() && i < wanted.size() &&
                      table[i].at("name") == wanted[i].at("name") &&
                      table[i].at("shape") == wanted[i].at("shape") &&
                      (!compare_trainable || table[i].at("trainable") == wanted[i].at("trainable"));
    if (!same) {
      throw InputError(
          str(where, " does not hold the model ", store.settings().name, " of this run: parameter ",
              i, " is ", describe(wanted, i), ", in the checkpoint ", describe(table, i)),
          "resume with the model and the settings that the run began with");
    }
  }
}

ShardReader::ShardReader(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    files_.emplace_back(path);
    for (const TensorInfo& info : files_.back().tensors()) {
      const size_t at = info.name.rfind('@');
      int64_t offset = -1;
      const char* end = info.name.data() + info.name.size();
      const bool parsed = at != std::string::npos && info.shape.size() == 1 &&
                          std::from_chars(info.name.data() + at + 1, end, offset).ptr == end;
      require<InputError>(parsed && offset >= 0, path, " holds the tensor ", info.name,
                          ", which is no piece of a checkpoint");
      pieces_[info.name.substr(0, at)].push_back(
          {{offset, offset + info.numel()}, files_.size() - 1, info.name});
    }
  }
  for (auto& [key, list] : pieces_) {
    std::sort(list.begin(), list.end(),
              [](const Piece& a, const Piece& b) { return a.extent.begin < b.extent.begin; });
  }
}

const ShardReader::Pieces& ShardReader::pieces(const std::string& kind,
                                               const std::string& param) const {
  static const Pieces none;
  const auto found = pieces_.find(key_of(kind, param));
  return found == pieces_.end() ? none : found->second;
}

// A parameter that was trained has a master, one that was frozen a weight.
const ShardReader::Pieces& ShardReader::values_of(const std::string& param) const {
  const Pieces& masters = pieces(kMaster, param);
  return masters.empty() ? pieces(kWeight, param) : masters;
}

void ShardReader::require_cover(const std::string& kind, const ParamSpec& param) const {
  int64_t covered = 0;
  for (const Piece& piece : kind.empty() ? values_of(param.name) : pieces(kind, param.name)) {
    require<InputError>(piece.extent.begin == covered, "the checkpoint holds elements ",
                        piece.extent.begin, " to ", piece.extent.end, " of parameter ", param.name,
                        " where element ", covered, " should follow");
    covered = piece.extent.end;
  }
  require<InputError>(covered == numel_of(param), "the checkpoint holds ", covered, " of ",
                      numel_of(param), " elements of parameter ", param.name,
                      kind.empty() ? "" : str(" (", kind, ")"));
}

void ShardReader::check(Store& store, const ShardExtras& extras, bool frozen_excluded) const {
  for (GroupId group = 0; group < store.num_groups(); ++group) {
    for (const ParamSpec& param : store.spec(group).params) {
      if (frozen_excluded && !param.trainable && values_of(param.name).empty()) {
        continue;
      }
      require_cover("", param);
      if (!param.trainable) {
        continue;
      }
      if (extras.optimizer != nullptr) {
        for (const std::string& name : extras.optimizer->state_names(param)) {
          require_cover(name, param);
        }
      }
      if (extras.averages != nullptr) {
        require_cover(kAverage, param);
      }
    }
  }
}

void ShardReader::copy(const std::string& kind, const ShardSlice& slice,
                       const at::Tensor& values) const {
  const Extent wanted{slice.param_offset, slice.param_offset + slice.extent.size()};
  for (const Piece& piece : pieces(kind, slice.param->name)) {
    const Extent both = intersect(wanted, piece.extent);
    if (both.size() > 0) {
      values.narrow(0, both.begin - wanted.begin, both.size())
          .copy_(files_[piece.file]
                     .read(piece.name)
                     .narrow(0, both.begin - piece.extent.begin, both.size()));
    }
  }
}

at::Tensor ShardReader::whole(const ParamSpec& param, bool average) const {
  const std::string kind = average && param.trainable ? kAverage : "";
  require_cover(kind, param);
  const Pieces& list = kind.empty() ? values_of(param.name) : pieces(kind, param.name);
  at::Tensor all;
  for (const Piece& piece : list) {
    const at::Tensor part = files_[piece.file].read(piece.name);
    all = all.defined() ? all : at::empty({numel_of(param)}, part.options());
    all.narrow(0, piece.extent.begin, piece.extent.size()).copy_(part);
  }
  return (all.defined() ? all : at::empty({0})).view(param.shape);
}

void ShardReader::load(Store& store, const ShardExtras& extras) const {
  for (GroupId group = 0; group < store.num_groups(); ++group) {
    const std::vector<ParamSpec>& params = store.spec(group).params;
    for (size_t i = 0; i < params.size(); ++i) {
      for (const Piece& piece : values_of(params[i].name)) {
        store.write(group, static_cast<int>(i), piece.extent.begin,
                    files_[piece.file].read(piece.name));
      }
    }
  }
  const std::vector<OptimizerShard> shards = store.shards();
  for (size_t i = 0; i < shards.size(); ++i) {
    for (size_t j = 0; j < shards[i].slices.size(); ++j) {
      const ShardSlice& slice = shards[i].slices[j];
      if (extras.optimizer != nullptr) {
        for (const std::string& name : extras.optimizer->state_names(*slice.param)) {
          copy(name, slice, extras.optimizer->state(i, j, name));
        }
      }
      if (extras.averages != nullptr) {
        copy(kAverage, slice, part_of(extras.averages->at(i), slice.extent));
      }
    }
  }
}

}  // namespace reknit
