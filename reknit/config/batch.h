// The batch triple: B = m * g * W. Pure arithmetic.
#pragma once

#include "reknit/config/finding.h"

#include <cstdint>
#include <optional>
#include <string>

namespace reknit {

/// What was given, and where.
struct BatchRequest {
  std::optional<int64_t> global;        ///< B, train_batch_size
  std::optional<int64_t> micro;         ///< m, train_micro_batch_size_per_gpu
  std::optional<int64_t> accumulation;  ///< g, gradient_accumulation_steps
  std::string global_from = "the config";
  std::string micro_from = "the config";
  std::string accumulation_from = "the config";
};

struct BatchSizes {
  int64_t global = 0;
  int64_t micro = 0;
  int64_t accumulation = 0;
  int64_t ranks = 0;  ///< W, data-parallel ranks
};

/// Derives what is missing: B and m give g; B and g give m; m and g give B; B alone has
/// g = 1, m = B / W; m alone has g = 1, B = m * W. Anything that does not come out whole,
/// and g or nothing alone, adds one error that states B, m, g, W and where each came
/// from, with a help line when B and m look exchanged; the result is then all 0.
BatchSizes solve_batch(const BatchRequest& request, int64_t ranks, const std::string& ranks_from,
                       Findings& findings);

}  // namespace reknit
