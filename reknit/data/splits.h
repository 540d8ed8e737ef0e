// What the command line says about data: parts of a data set, and blends.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reknit {

/// A half-open range of sequences.
struct SequenceRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const SequenceRange&) const = default;
};

enum class Part { kTrain, kValid, kTest };

/// Train, valid and test of `sequences` by Megatron's rule for `weights` such as
/// "969,30,1" (commas or slashes; missing ones are 0): each share is rounded to the nearest
/// whole number (a half to the even one), and what the sum has too much is taken off every
/// boundary. 10 sequences become 10, 0, 0. Sequences are counted, not documents. Throws
/// UsageError for weights that are none.
std::array<SequenceRange, 3> split_ranges(std::string_view weights, int64_t sequences);

/// One data set of a blend.
struct BlendEntry {
  double weight = 1;  ///< above 0; the sum over a blend is 1
  std::string prefix;
};

/// "PREFIX" alone, or "WEIGHT PREFIX" repeated; weights are normalised. Throws UsageError.
std::vector<BlendEntry> parse_blend(const std::vector<std::string>& words);

}  // namespace reknit
