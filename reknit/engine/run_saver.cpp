#include "reknit/engine/run_saver.h"

#include "reknit/base/atomic_file.h"
#include "reknit/base/log.h"
#include "reknit/checkpoint/hf_config.h"
#include "reknit/checkpoint/shards.h"
#include "reknit/engine/run_files.h"
#include "reknit/engine/runtime.h"
#include "reknit/engine/together.h"

#include <ATen/ATen.h>

#include <chrono>
#include <filesystem>
#include <thread>

namespace reknit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

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
          {"value_head", model.spec != nullptr && model.spec->value_head},
          {"trainer", trainer_json(model.trainer)}};
}

Json state_json(const RunState& run, const Json& extra) {
  Json models = Json::array();
  for (const RunModel& model : run.models) {
    models.push_back(model_json(model));
  }
  return {{"format", kRunFormat},       {"version", kRunVersion}, {"step", run.step},
          {"world", run.world->size()}, {"models", models},       {"extra", extra}};
}

/// What `reknit export` will need of a model beside its shards.
struct HfTexts {
  std::string folder;  ///< its name in the checkpoint
  Json config;
  Json generation_config;
  std::string tokenizer_folder;
};

/// One model's file of this rank.
struct ShardFile {
  std::string name;
  NamedTensors tensors;
  FileRecord record;
};

}  // namespace

struct RunSaver::Job {
  Communicator* world;
  std::string out_dir;
  int keep;
  std::string aside;
  c10::Device device = c10::kCPU;  ///< of the tensors
  std::vector<std::optional<ShardFile>> files;
  std::string state;                      ///< the text of state.json
  std::vector<HfTexts> texts;             ///< on rank 0
  std::optional<AtomicFolder> folder;     ///< on rank 0
  std::vector<std::string> names;         ///< of the models
  std::vector<std::vector<int>> writers;  ///< of each model, by shard
  Manifest manifest;                      ///< on rank 0, once all files are written
  bool completing = false;
};

RunSaver::RunSaver() = default;

RunSaver::~RunSaver() {
  given_up_ = true;
}

std::string RunSaver::start(const RunState& run, const Json& extra, const std::string& out_dir,
                            int keep, SaveFrom from) {
  wait();
  const std::string path = (fs::path(out_dir) / step_folder_name(run.step)).string();
  together(*run.world, [&] {
    job_ = std::make_unique<Job>();
    job_->world = run.world;
    job_->out_dir = out_dir;
    job_->keep = keep;
    if (run.world->rank() == 0) {
      remove_unfinished(out_dir);
      job_->folder.emplace(path, IfPresent::kReplace);
    }
    job_->aside = broadcast_text(*run.world, job_->folder ? job_->folder->aside() : "");
    begin(run, extra, from);
    background_.start(job_->device, [this] { write(); });
  });
  return path;
}

void RunSaver::begin(const RunState& run, const Json& extra, SaveFrom from) {
  copies_.resize(std::max(copies_.size(), run.models.size()));
  for (size_t i = 0; i < run.models.size(); ++i) {
    const RunModel& model = run.models[i];
    if (model.store->has_gradients() && run.world->rank() == 0) {
      log_warning(model.name, " has gradients that no step has used; they are not saved");
    }
    job_->names.push_back(model.name);
    job_->writers.push_back(model.store->comms().shard_ranks);
    std::optional<ShardFile>& file = job_->files.emplace_back();
    if (writes_shards(*model.store)) {
      file = ShardFile{shard_file_name(model.name, model.store->shard_index()),
                       shard_tensors(*model.store, extras_of(model), model.save_frozen),
                       {}};
      if (from == SaveFrom::kCopy) {
        copy_to_host(file->tensors, i);
      }
    }
    if (run.world->rank() == 0 && model.source != nullptr) {
      job_->texts.push_back(
          {hf_folder_name(model.name),
           written_config(model.source->config(), *model.spec, model.store->settings().dtype),
           model.source->generation_config(), model.source->path()});
    }
  }
  run.world->synchronize(this_rank().compute);
  job_->device = from == SaveFrom::kShards ? this_rank().device : c10::Device(c10::kCPU);
  if (run.world->rank() == 0) {
    job_->state = state_json(run, extra).dump(1) + "\n";
  }
}

// In order on the compute stream, which the caller then waits for.
void RunSaver::copy_to_host(NamedTensors& tensors, size_t model) {
  std::vector<at::Tensor>& kept = copies_[model];
  kept.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor& values = tensors[i].second;
    if (!kept[i].defined() || kept[i].numel() != values.numel() ||
        kept[i].scalar_type() != values.scalar_type()) {
      kept[i] =
          at::empty(values.sizes(),
                    values.options().device(at::kCPU).pinned_memory(values.device().is_cuda()));
    }
    kept[i].copy_(values, /*non_blocking=*/true);
    values = kept[i];
  }
}

void RunSaver::write() {
  for (std::optional<ShardFile>& file : job_->files) {
    if (!file) {
      continue;
    }
    std::vector<TensorInfo> infos;
    for (const auto& [name, tensor] : file->tensors) {
      infos.push_back(info_of(name, tensor));
    }
    const std::string path = (fs::path(job_->aside) / file->name).string();
    SafetensorsWriter writer(path, std::move(infos));
    for (const auto& [name, tensor] : file->tensors) {
      if (given_up_) {
        return;
      }
      writer.write(name, tensor);
    }
    writer.commit();
    file->record = record_file(path);
  }
}

// On rank 0, when all files of all ranks are there.
void RunSaver::complete() {
  Manifest& manifest = job_->manifest;
  const auto record = [&](const std::string& name) {
    manifest.files[name] = record_file((fs::path(job_->aside) / name).string());
  };
  for (const HfTexts& texts : job_->texts) {
    const std::string folder = (fs::path(job_->aside) / texts.folder).string();
    for (const std::string& name :
         write_hf_texts(folder, texts.config, texts.generation_config, texts.tokenizer_folder)) {
      record((fs::path(texts.folder) / name).string());
    }
  }
  write_file((fs::path(job_->aside) / kStateName).string(), job_->state);
  record(kStateName);
  manifest.serial = next_serial(job_->out_dir);
  write_manifest(job_->aside, manifest);
  if (given_up_) {
    return;
  }
  job_->folder->commit();
  if (job_->keep > 0) {
    remove_older(job_->out_dir, job_->keep);
  }
}

void RunSaver::poll() {
  if (!job_) {
    return;
  }
  together(*job_->world, [&] {
    const bool busy = background_.running();
    if (!busy) {
      background_.finish();
    }
    if (largest(*job_->world, busy ? 1 : 0) == 0) {
      advance();
    }
  });
}

// All ranks are here with nothing running.
void RunSaver::advance() {
  if (job_->completing) {
    job_.reset();
    return;
  }
  job_->completing = true;
  std::vector<FileRecord> mine;
  for (const std::optional<ShardFile>& file : job_->files) {
    mine.push_back(file ? file->record : FileRecord{});
  }
  const auto records = gather_records(*job_->world, mine);
  if (!job_->folder) {
    return;
  }
  // Rank 0's shard group is the one that wrote the shards.
  for (size_t i = 0; i < job_->writers.size(); ++i) {
    for (size_t shard = 0; shard < job_->writers[i].size(); ++shard) {
      job_->manifest.files[shard_file_name(job_->names[i], static_cast<int>(shard))] =
          records[job_->writers[i][shard]][i];
    }
  }
  background_.start(c10::kCPU, [this] { complete(); });
}

void RunSaver::wait() {
  while (job_) {
    poll();
    if (job_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

}  // namespace reknit
