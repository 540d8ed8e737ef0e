// Names for stretches of work in a profile (NVTX: Nsight Systems and Compute show them).
#pragma once

#include <cstdint>

namespace reknit {

/// What the calling thread does from here to the end of the scope, under a name of ours in the
/// domain "reknit". Ranges nest. Some nanoseconds where no profiler listens, nothing in a
/// build without CUDA.
class ProfileRange {
 public:
  /// `name` is a literal; `number`, such as a layer's, is shown beside it.
  explicit ProfileRange(const char* name, int64_t number = -1);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
};

}  // namespace reknit
