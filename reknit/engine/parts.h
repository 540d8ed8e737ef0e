// How sequences are dealt out to ranks.
#pragma once

#include <cstdint>

namespace reknit {

/// A rank's consecutive part [begin, end) of `count` things, in rank order. The sizes of two
/// ranks' parts differ by at most one, and a single thing is rank 0's.
struct RankPart {
  int64_t begin;
  int64_t end;
};

constexpr RankPart rank_part(int64_t count, int rank, int world) {
  return {(count * rank + world - 1) / world, (count * (rank + 1) + world - 1) / world};
}

}  // namespace reknit
