// The same tiny model trained on the same tokens under any strategy and number of ranks.
#pragma once

#include "reknit/engine/model.h"
#include "reknit/engine/trainer.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace reknit::testing_support {

/// A way to shard, as a table names it.
struct Strategy {
  std::string name;
  int zero_stage = 3;
  int mics_shard = 0;  ///< 0: the world
  bool hierarchical = false;
};
/// ZeRO-0 to 3, MiCS 2, MiCS 4, MiCS 4 hierarchical.
const std::vector<Strategy>& strategies();

struct Twin {
  std::string model = "gpt2";  ///< one of twin_models()
  std::string folder = {};     ///< a Hugging Face folder of such a model; empty: drawn weights
  int world = 1;
  int nodes = 1;
  Placement placement = {0, 1};
  at::ScalarType dtype = at::kFloat;
  int accumulation = 1;
  int steps = 4;
  std::optional<at::ScalarType> reduce_dtype = {};
  bool overlap = true;
  std::vector<int> overflows = {};            ///< steps in which a reduced gradient becomes inf
  std::chrono::milliseconds gather_delay{0};  ///< of every gather of rank 1
};
const std::vector<std::string>& twin_models();

/// The twin under `strategy` on `world` ranks, two a node for shard groups of four; none if
/// the strategy needs another number of ranks.
std::optional<Twin> placed(Twin twin, const Strategy& strategy, int world);

struct TwinRun {
  std::vector<double> losses;  ///< by step: mean over the tokens of the global batch
  std::vector<StepRecord> steps;
};
/// Trains on thread ranks with a global batch that depends on the step alone.
TwinRun run_twin(const Twin& twin);

/// The largest relative difference of a loss or of the gradient norm of a step that was
/// made; infinite where scales or skips differ.
double difference(const TwinRun& a, const TwinRun& b);

}  // namespace reknit::testing_support
