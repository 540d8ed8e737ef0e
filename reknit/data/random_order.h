// A random permutation that needs no table: any entry is computed from its place.
#pragma once

#include <array>
#include <cstdint>

namespace reknit {

/// A permutation of 0 to size - 1 chosen by `key`: a pure function of (key, size, place).
/// Takes no memory, so that it serves data sets of any length, and costs some tens of
/// nanoseconds an entry. (A Feistel network on the next power of two, walked on while it
/// leaves the range.)
class RandomOrder {
 public:
  /// `size` is at least 1.
  RandomOrder(uint64_t key, int64_t size);

  int64_t size() const { return size_; }
  /// The entry at `place` (0 to size() - 1).
  int64_t operator()(int64_t place) const;

 private:
  static constexpr int kRounds = 8;

  int64_t size_;
  int left_bits_;   ///< width of the half that a round changes; the two swap every round
  int right_bits_;  ///< width of the half that it reads
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace reknit
