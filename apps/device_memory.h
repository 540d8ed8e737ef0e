// What a GPU has free.
#pragma once

#include <cstdint>

namespace reknit {

/// Bytes that visible CUDA device `device` can still give to this process. UsageError if it
/// does not answer, and in a build without CUDA.
int64_t free_device_memory(int device);

}  // namespace reknit
