#include "reknit/engine/run_state.h"

#include "reknit/base/atomic_file.h"
#include "reknit/base/error_text.h"
#include "reknit/base/log.h"
#include "reknit/checkpoint/json_text.h"
#include "reknit/checkpoint/run_folder.h"
#include "reknit/checkpoint/shards.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

namespace reknit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kFormat = "reknit-run";
constexpr int kVersion = 1;
constexpr const char* kStateName = "state.json";

// An error of this rank ends the wait of the others.
template <class Body>
auto together(Communicator& world, Body body) {
  try {
    return body();
  } catch (const AbortedError&) {
    throw;
  } catch (const std::exception& error) {
    world.abort(first_line(error));
    throw;
  }
}

at::Tensor broadcast_bytes(Communicator& world, at::Tensor bytes) {
  const Stream& stream = this_rank().compute;
  auto result = world.broadcast({bytes.to(this_rank().device)}, 0, stream).wait_on_host();
  return result.front().to(at::kCPU);
}

/// Rank 0's text on every rank.
std::string broadcast_text(Communicator& world, const std::string& text) {
  const at::Tensor length =
      broadcast_bytes(world, at::full({1}, static_cast<int64_t>(text.size()), at::kLong));
  at::Tensor bytes = at::zeros({length.item<int64_t>()}, at::kByte);
  if (world.rank() == 0) {
    std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  }
  bytes = broadcast_bytes(world, bytes);
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

/// Every rank's records of its files, one for each model, on every rank: [rank][model].
std::vector<std::vector<FileRecord>> gather_records(Communicator& world,
                                                    const std::vector<FileRecord>& mine) {
  const auto count = static_cast<int64_t>(mine.size());
  at::Tensor numbers = at::zeros({count * 2}, at::kLong);
  auto* out = numbers.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    out[2 * i] = mine[i].bytes;
    out[2 * i + 1] = static_cast<int64_t>(mine[i].checksum);
  }
  numbers = numbers.to(this_rank().device);
  at::Tensor all = at::empty({world.size() * count * 2}, numbers.options());
  const Stream& stream = this_rank().compute;
  all = world.all_gather(all, {{all, numbers}}, stream).wait_on_host().to(at::kCPU);
  const auto* in = all.const_data_ptr<int64_t>();
  std::vector<std::vector<FileRecord>> records(world.size());
  for (auto& list : records) {
    for (int64_t i = 0; i < count; ++i, in += 2) {
      list.push_back({in[0], static_cast<uint64_t>(in[1])});
    }
  }
  return records;
}

std::string shard_file_name(const std::string& model, int shard) {
  std::string digits = std::to_string(shard);
  digits.insert(0, digits.size() < 5 ? 5 - digits.size() : 0, '0');
  return model + "." + digits + ".safetensors";
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

Json model_json(const RunModel& model) {
  const StoreSettings& settings = model.store->settings();
  Json files = Json::array();
  for (int shard = 0; shard < settings.placement.shard_size; ++shard) {
    files.push_back(shard_file_name(model.name, shard));
  }
  return {{"name", model.name},
          {"files", files},
          {"placement",
           {{"zero_stage", settings.placement.zero_stage},
            {"shard_size", settings.placement.shard_size}}},
          {"dtype", c10::toString(settings.dtype)},
          {"parameters", parameter_table(*model.store)},
          {"frozen_saved", model.save_frozen},
          {"averaged", model.averages != nullptr},
          {"trainer", trainer_json(model.trainer)}};
}

Json state_json(const RunState& run, const Json& extra) {
  Json models = Json::array();
  for (const RunModel& model : run.models) {
    models.push_back(model_json(model));
  }
  return {{"format", kFormat},          {"version", kVersion}, {"step", run.step},
          {"world", run.world->size()}, {"models", models},    {"extra", extra}};
}

ShardExtras extras_of(const RunModel& model) {
  return {model.trainer == nullptr ? nullptr : &model.trainer->optimizer(), model.averages};
}

FileRecord write_shards(const RunModel& model, const std::string& folder) {
  if (!writes_shards(*model.store)) {
    return {};
  }
  const std::string path =
      (fs::path(folder) / shard_file_name(model.name, model.store->shard_index())).string();
  write_safetensors(path, shard_tensors(*model.store, extras_of(model), model.save_frozen));
  return record_file(path);
}

void warn_of_gradients(const RunModel& model, const char* what) {
  if (model.store->has_gradients() && this_rank().rank == 0) {
    log_warning(model.name, " has gradients that no step has used; they are ", what);
  }
}

void write_state(const RunState& run, const Json& extra, const std::string& out_dir,
                 const std::string& folder, const std::vector<std::vector<FileRecord>>& records) {
  const std::string path = (fs::path(folder) / kStateName).string();
  write_file(path, state_json(run, extra).dump(1) + "\n");
  Manifest manifest{next_serial(out_dir), {{kStateName, record_file(path)}}};
  for (size_t i = 0; i < run.models.size(); ++i) {
    // Rank 0 writes this: its shard group is the one that wrote the shards.
    const std::vector<int>& writers = run.models[i].store->comms().shard_ranks;
    for (size_t shard = 0; shard < writers.size(); ++shard) {
      manifest.files[shard_file_name(run.models[i].name, static_cast<int>(shard))] =
          records[writers[shard]][i];
    }
  }
  write_manifest(folder, manifest);
}

/// Rank 0 makes the folder aside, all write into it, rank 0 completes and renames it.
std::string save_together(const RunState& run, const Json& extra, const std::string& out_dir,
                          int keep) {
  Communicator& world = *run.world;
  const std::string path = (fs::path(out_dir) / step_folder_name(run.step)).string();
  std::optional<AtomicFolder> folder;
  if (world.rank() == 0) {
    remove_unfinished(out_dir);
    folder.emplace(path, IfPresent::kReplace);
  }
  const std::string aside = broadcast_text(world, folder ? folder->aside() : "");
  world.synchronize(this_rank().compute);
  std::vector<FileRecord> mine;
  for (const RunModel& model : run.models) {
    warn_of_gradients(model, "not saved");
    mine.push_back(write_shards(model, aside));
  }
  const auto records = gather_records(world, mine);
  if (folder) {
    write_state(run, extra, out_dir, aside, records);
    folder->commit();
    if (keep > 0) {
      remove_older(out_dir, keep);
    }
  }
  world.barrier();
  return path;
}

const Json& find_model(const Json& state, const std::string& name, const std::string& path) {
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

// Each rank reads a part of the files.
void verify_together(Communicator& world, const std::string& path) {
  int turn = 0;
  for (const auto& [name, record] : read_manifest(path).files) {
    if (turn++ % world.size() == world.rank()) {
      verify_file(path, name, record);
    }
  }
  world.barrier();
}

ShardReader open_model(const Json& saved, const RunModel& model, const std::string& path) {
  const bool trained = model.trainer != nullptr;
  require_same_parameters(saved.at("parameters"), *model.store, trained, path);
  require<InputError>(!trained || !saved.at("trainer").is_null(), "the checkpoint ", path,
                      " holds no optimizer state of ", model.name);
  if (model.averages != nullptr && !saved.value("averaged", false)) {
    throw InputError(str("the checkpoint ", path, " holds no moving average of ", model.name),
                     "resume with the flags that the run began with");
  }
  if (trained) {
    const Optimizer& optimizer = model.trainer->optimizer();
    const std::string was = saved.at("trainer").value("optimizer", "adam");
    require<InputError>(was == optimizer.name(), "the checkpoint ", path, " was made with ", was,
                        ", and ", model.name, " is trained with ", optimizer.name());
  }
  std::vector<std::string> files;
  for (const Json& file : saved.at("files")) {
    files.push_back((fs::path(path) / file.get<std::string>()).string());
  }
  ShardReader reader(files);
  reader.check(*model.store, extras_of(model), !saved.at("frozen_saved").get<bool>());
  return reader;
}

Json load_together(RunState& run, const std::string& path) {
  verify_together(*run.world, path);
  const Json state = read_json_object((fs::path(path) / kStateName).string());
  require<InputError>(state.value("format", "") == kFormat, path, " is no checkpoint of a run");
  require<InputError>(state.at("version") == kVersion, path, " has format version ",
                      state.at("version").dump(), ", this program reads ", kVersion);
  std::vector<ShardReader> readers;
  for (const RunModel& model : run.models) {
    readers.push_back(open_model(find_model(state, model.name, path), model, path));
  }
  run.world->barrier();
  for (size_t i = 0; i < run.models.size(); ++i) {
    const RunModel& model = run.models[i];
    warn_of_gradients(model, "dropped");
    model.store->drop_step();
    readers[i].load(*model.store, extras_of(model));
    if (model.trainer != nullptr) {
      model.trainer->restore(trainer_state(find_model(state, model.name, path).at("trainer")));
    }
  }
  run.step = state.at("step").get<int64_t>();
  run.world->barrier();
  return state.at("extra");
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

// A network file system may show a new file a little late.
bool appears(const std::string& path) {
  for (int i = 0; i < 40; ++i) {
    std::error_code ignored;
    if (fs::exists(path, ignored)) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

}  // namespace

void require_shared_folder(Communicator& world, const std::string& out_dir) {
  together(world, [&] {
    std::string name;
    if (world.rank() == 0) {
      std::error_code error;
      fs::create_directories(out_dir, error);
      require<UsageError>(!error, "cannot create ", out_dir, ": ", error.message());
      name = str(".shared-", std::random_device()());
      write_file((fs::path(out_dir) / name).string(), "");
    }
    name = broadcast_text(world, name);
    const std::string path = (fs::path(out_dir) / name).string();
    if (!appears(path)) {
      throw UsageError(str("rank ", world.rank(), " on ", host_name(), " does not see the folder ",
                           out_dir, " of rank 0"),
                       "the run's folder must be on a file system that all nodes share");
    }
    world.barrier();
    if (world.rank() == 0) {
      fs::remove(path);
    }
  });
}

std::string save_run(const RunState& run, const nlohmann::json& extra, const std::string& out_dir,
                     int keep) {
  return together(*run.world, [&] { return save_together(run, extra, out_dir, keep); });
}

std::optional<std::string> find_newest_run(Communicator& world, const std::string& out_dir) {
  return together(world, [&]() -> std::optional<std::string> {
    std::string found;
    if (world.rank() == 0) {
      found = find_newest_whole(out_dir).value_or("");
    }
    found = broadcast_text(world, found);
    return found.empty() ? std::nullopt : std::optional(found);
  });
}

nlohmann::json load_run(RunState& run, const std::string& path) {
  return together(*run.world, [&] {
    try {
      return load_together(run, path);
    } catch (const Json::exception& error) {
      throw InputError(str(path, " is damaged: ", error.what()),
                       "remove it; --resume auto takes the newest checkpoint that is whole");
    }
  });
}

}  // namespace reknit
