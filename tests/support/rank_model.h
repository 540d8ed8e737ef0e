// A golden model on thread ranks, under any placement.
#pragma once

#include "reknit/engine/model.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace reknit::testing_support {

struct RankModelSettings {
  int zero_stage = 3;
  int shard_size = 0;  ///< 0: the world
  at::ScalarType dtype = at::kFloat;
  int64_t persistence_threshold = 0;
  bool training = true;
  bool poison_released = kPoisonReleased;
};

/// The model of an HF folder on this rank; its pool lives beside it.
struct RankModel {
  HfFolder folder;
  SlotPool pool;
  std::unique_ptr<Model> model;

  RankModel(const std::filesystem::path& path, std::shared_ptr<Communicator> world,
            const RankModelSettings& settings)
      : folder(path.string()), pool(rank_memory, settings.poison_released) {
    const int shard_size = settings.shard_size == 0 ? world->size() : settings.shard_size;
    model = make_model(ModelSpec::from_hf(folder.config()),
                       {.name = "actor",
                        .dtype = settings.dtype,
                        .placement = {settings.zero_stage, shard_size},
                        .persistence_threshold = settings.persistence_threshold,
                        .training = settings.training,
                        .allocator = {}},
                       StoreComms::over(world, shard_size), pool);
    pool.seal();
    load_model(*model, folder, ValueHead::kNone, 0);
  }
};

/// The prompts of a golden case, one vector per sequence.
inline std::vector<std::vector<int64_t>> golden_prompts(
    const std::map<std::string, at::Tensor>& golden) {
  std::vector<std::vector<int64_t>> prompts;
  const auto* tokens = golden.at("tokens").const_data_ptr<int64_t>();
  const at::Tensor lengths = golden.at("lengths").to(at::kLong);
  for (int64_t i = 0; i < lengths.numel(); ++i) {
    const int64_t length = lengths.const_data_ptr<int64_t>()[i];
    prompts.emplace_back(tokens, tokens + length);
    tokens += length;
  }
  return prompts;
}

/// Every parameter of the model, in order, whole, on the CPU.
inline std::vector<at::Tensor> all_weights(Store& store) {
  std::vector<at::Tensor> all;
  for (GroupId g = 0; g < store.num_groups(); ++g) {
    for (size_t p = 0; p < store.spec(g).params.size(); ++p) {
      all.push_back(store.read_full(g, static_cast<int>(p)).cpu());
    }
  }
  return all;
}

}  // namespace reknit::testing_support
