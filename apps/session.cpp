#include "apps/session.h"

#include "apps/planning.h"
#include "apps/report_error.h"
#include "apps/shared_flags.h"
#include "reknit/base/atomic_file.h"
#include "reknit/base/log.h"
#include "reknit/base/write_error.h"
#include "reknit/checkpoint/hf_config.h"
#include "reknit/models/name_map.h"
#include "reknit/optim/configured.h"

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace reknit {
namespace {

namespace fs = std::filesystem;

std::optional<at::ScalarType> reduce_dtype(const DeepSpeedConfig& config) {
  const auto& name = config.communication_data_type;
  if (!name) {
    return std::nullopt;
  }
  return scalar_type(precision_named(*name));
}

// generation_config.json's end token, which transformers lets win; nothing if it names none.
std::optional<int64_t> generation_end(const HfFolder& folder) {
  const nlohmann::json& config = folder.generation_config();
  const auto found = config.is_object() ? config.find("eos_token_id") : config.end();
  if (found == config.end() || found->is_null()) {
    return std::nullopt;
  }
  const bool several = found->is_array() && !found->empty();
  const nlohmann::json& value = several ? found->front() : *found;
  require<InputError>(value.is_number_integer(), folder.path(),
                      "/generation_config.json: eos_token_id must be a token id, not ",
                      found->dump());
  if (several && found->size() > 1) {
    log_once(folder.path(), "/generation_config.json names the end tokens ", found->dump(),
             ": only the first ends an answer");
  }
  return value.get<int64_t>();
}

int64_t end_token(const HfFolder& folder, const ModelSpec& spec,
                  const std::optional<Tokenizer>& tokenizer) {
  const int64_t named = generation_end(folder).value_or(spec.eos);
  require<InputError>(named < spec.vocab, folder.path(), ": the end token ", named,
                      " is outside the vocabulary of ", spec.vocab);
  return named >= 0 || !tokenizer ? named : tokenizer->eos().value_or(-1);
}

}  // namespace

RankPlan rank_plan(const RunOptions& options) {
  RankPlan plan;
  plan.devices = options.place.devices();
  if (options.place.launched) {
    plan.rendezvous = options.place.launched->rendezvous;
  }
  plan.timeout = std::chrono::seconds(options.timeout_s);
  plan.report = report_error;
  plan.deterministic = options.deterministic;
  plan.nodes = static_cast<int>(options.place.nodes);
  return plan;
}

StoreSettings store_settings(const std::string& name, const ModelSettings& settings,
                             const RankEnvironment& environment, bool training) {
  StoreSettings store = planned_store(name, settings, environment.world->size(), training);
  store.allocator = environment.allocator;
  return store;
}

StoreSettings planned_store(const std::string& name, const ModelSettings& settings, int ranks,
                            bool training) {
  const DeepSpeedConfig& config = settings.reading.config;
  const bool mics = config.zero.mics_shard_size > 0;
  const int shard_size = mics ? static_cast<int>(config.zero.mics_shard_size) : ranks;
  return {.name = name,
          .dtype = scalar_type(config.precision()),
          .placement = {static_cast<int>(config.zero.stage), shard_size,
                        mics && config.zero.mics_hierarchical,
                        static_cast<int>(training ? config.zero.hpz_partition_size : 1)},
          // DeepSpeed keeps parameters of exactly the threshold whole too.
          .persistence_threshold = std::min(config.zero.persistence_threshold, INT64_MAX - 1) + 1,
          .persistence_limit = config.zero.model_persistence_threshold / shard_size,
          .prefetch_depth = config.zero.prefetch_bucket_size > 0 ? 1 : 0,
          .overlap = config.zero.overlap_comm,
          .reduce_dtype = reduce_dtype(config),
          .training = training};
}

TrainerSettings trainer_settings(const std::string& name, const ModelSettings& settings,
                                 const Schedule& schedule) {
  const DeepSpeedConfig& config = settings.reading.config;
  return {.name = name,
          .lr = config.optimizer.lr.value_or(0.0),
          .schedule = schedule,
          .optimizer = optimizer_settings(config.optimizer),
          .clip = config.gradient_clipping,
          .scaler = scaler_settings(config.fp16)};
}

Schedule configured_schedule(const ModelSettings& settings, int64_t total_updates) {
  return schedule_of(settings.reading.config.scheduler, total_updates);
}

HybridSettings hybrid_settings(const ModelSettings& settings) {
  const HybridConfig& config = settings.reading.config.hybrid;
  return {.mode = config.pin_parameters ? GatherMode::kPinned : GatherMode::kLayerwise,
          .release_memory = config.release_inference_cache};
}

ModelSpec model_spec(const HfFolder& folder, bool value_head) {
  ModelSpec spec = ModelSpec::from_hf(folder.config());
  spec.value_head = value_head;
  return spec;
}

bool has_value_head(const HfFolder& folder) {
  std::vector<std::string> names;
  for (const TensorInfo& info : folder.tensors()) {
    names.push_back(info.name);
  }
  const std::string head = find_value_head(names);
  return !head.empty() && folder.find(head)->shape.at(0) == 1;
}

std::optional<Tokenizer> find_tokenizer(const std::string& tokenizer_dir,
                                        const std::string& model_dir) {
  if (!tokenizer_dir.empty()) {
    return Tokenizer::load(tokenizer_dir);
  }
  if (tokenizer_files(model_dir).empty()) {
    return std::nullopt;
  }
  return Tokenizer::load(model_dir);
}

std::vector<int64_t> field_tokens(const Row& row, const Field& field,
                                  const std::optional<Tokenizer>& tokenizer) {
  if (field.kind == Field::Kind::kTokens) {
    return field.tokens;
  }
  if (field.kind == Field::Kind::kMessages) {
    row.fail("holds a conversation, which needs a chat template; give its text as \"prompt\"");
  }
  if (!tokenizer) {
    throw InputError(str(row.place, " holds text, and there is no tokenizer"),
                     "pass --tokenizer, or copy tokenizer.json from the base model");
  }
  return tokenizer->encode(field.text);
}

std::vector<int64_t> prompt_tokens(const Row& row, const std::optional<Tokenizer>& tokenizer) {
  for (const auto* field : {&row.prompt, &row.text, &row.tokens, &row.messages}) {
    if (*field) {
      return field_tokens(row, **field, tokenizer);
    }
  }
  row.fail("has no prompt");
}

SamplingSettings sampling_settings(const SamplingOptions& options, int64_t max_new_tokens,
                                   int64_t seed, const HfFolder& folder,
                                   const std::optional<Tokenizer>& tokenizer) {
  const ModelSpec spec = model_spec(folder, false);
  return {.max_new_tokens = max_new_tokens,
          .min_new_tokens = options.min_new_tokens,
          .temperature = options.temperature,
          .top_k = options.top_k,
          .top_p = options.top_p,
          .seed = static_cast<uint64_t>(seed),
          .eos = end_token(folder, spec, tokenizer),
          .vocab = spec.vocab};
}

void print_result(const std::string& text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  // A reader that has gone away (`| head`) has what it wanted.
  if (!written && errno != EPIPE) {
    throw WriteError(str("cannot write the result to standard output: ", std::strerror(errno)),
                     "make room on the disk that it goes to");
  }
}

void write_result(const std::string& path, const std::string& text) {
  if (path.empty()) {
    print_result(text);
  } else if (std::error_code none; fs::exists(path, none) && !fs::is_regular_file(path, none)) {
    // A pipe or a device, as /dev/stdout: written to, never replaced.
    std::ofstream out(path);
    out << text << std::flush;
    if (!out.good()) {
      throw WriteError(str("cannot write ", path), "check the device or the pipe's reader");
    }
  } else {
    write_file(path, text);
  }
}

}  // namespace reknit
