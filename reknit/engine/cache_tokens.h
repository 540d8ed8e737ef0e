// How many tokens a cache has room for where so many were asked for.
#pragma once

#include <cstdint>

namespace reknit {

/// A GPU rounds up, so that few sizes occur.
inline int64_t cache_tokens(int64_t tokens, bool cuda) {
  constexpr int64_t kStep = 256;
  return cuda ? (tokens + kStep - 1) / kStep * kStep : tokens;
}

}  // namespace reknit
