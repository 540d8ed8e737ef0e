// The files of a checkpoint and what state.json holds, for the code that writes and reads them.
#pragma once

#include "reknit/checkpoint/shards.h"
#include "reknit/engine/run_state.h"

#include <nlohmann/json.hpp>

#include <string>

namespace reknit {

inline constexpr const char* kStateName = "state.json";
inline constexpr const char* kRunFormat = "reknit-run";
inline constexpr int kRunVersion = 1;

/// "actor.00003.safetensors".
std::string shard_file_name(const std::string& model, int shard);
/// "actor.hf": config.json, generation_config.json and the tokenizer's files.
std::string hf_folder_name(const std::string& model);

/// Of a model's files, beside its parameters.
ShardExtras extras_of(const RunModel& model);

/// Null for a model that is not trained.
nlohmann::json trainer_json(Trainer* trainer);
Trainer::State trainer_state(const nlohmann::json& json);

/// state.json of a checkpoint's folder. Throws InputError if it is of another format or version.
nlohmann::json read_run_state(const std::string& path);
/// A model of it. Throws InputError naming those that there are.
const nlohmann::json& find_saved_model(const nlohmann::json& state, const std::string& name,
                                       const std::string& path);

}  // namespace reknit
