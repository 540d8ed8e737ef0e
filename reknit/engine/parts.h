// How sequences are dealt out to ranks.
#pragma once

#include <cstdint>

namespace reknit {

/// Where rank's part of `count` things begins, in rank order; it ends where the next rank's
/// begins. Parts differ by at most one, and a single thing is rank 0's.
constexpr int64_t part_begin(int64_t count, int rank, int world) {
  return (count * rank + world - 1) / world;
}

}  // namespace reknit
