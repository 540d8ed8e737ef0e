// Memory that NCCL reads and writes fastest, and who has registered it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

namespace reknit {

/// A range from ncclMemAlloc.
struct NcclRange {
  void* base;
  int64_t bytes;
};

/// The live range that holds `address`.
std::optional<NcclRange> nccl_range_of(const void* address);

/// While it lives, `forget` is called with the base of every range that is about to be
/// freed, on the freeing thread.
class NcclRangeListener {
 public:
  explicit NcclRangeListener(std::function<void(void* base)> forget);
  ~NcclRangeListener();
  NcclRangeListener(const NcclRangeListener&) = delete;
};

}  // namespace reknit
