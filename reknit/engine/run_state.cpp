#include "reknit/engine/run_state.h"

#include "reknit/base/atomic_file.h"
#include "reknit/base/json_problem.h"
#include "reknit/base/log.h"
#include "reknit/checkpoint/run_folder.h"
#include "reknit/checkpoint/shards.h"
#include "reknit/engine/run_files.h"
#include "reknit/engine/run_saver.h"
#include "reknit/engine/runtime.h"
#include "reknit/engine/together.h"

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

void warn_of_gradients(const RunModel& model) {
  if (model.store->has_gradients() && this_rank().rank == 0) {
    log_warning(model.name, " has gradients that no step has used; they are dropped");
  }
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
  const Json state = read_run_state(path);
  std::vector<ShardReader> readers;
  for (const RunModel& model : run.models) {
    readers.push_back(open_model(find_saved_model(state, model.name, path), model, path));
  }
  run.world->barrier();
  for (size_t i = 0; i < run.models.size(); ++i) {
    const RunModel& model = run.models[i];
    warn_of_gradients(model);
    model.store->drop_step();
    readers[i].load(*model.store, extras_of(model));
    if (model.trainer != nullptr) {
      model.trainer->restore(
          trainer_state(find_saved_model(state, model.name, path).at("trainer")));
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
  RunSaver saver;
  const std::string path = saver.start(run, extra, out_dir, keep, SaveFrom::kShards);
  saver.wait();
  return path;
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
      throw InputError(str(path, " is damaged: ", json_problem(error)),
                       "remove it; --resume auto takes the newest checkpoint that is whole");
    }
  });
}

}  // namespace reknit
