#include "reknit/data/splits.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "reknit/base/error.h"

namespace reknit {
namespace {

constexpr const char* kSplitHelp = "three weights such as --split 969,30,1";
constexpr const char* kBlendHelp =
    "give one prefix, or pairs of a weight and a prefix: 0.7 books 0.3 code";

std::optional<double> number(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(' '), text.size());
  text = text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::array<double, 3> parse_weights(std::string_view text) {
  std::array<double, 3> weights{};
  size_t count = 0;
  for (size_t begin = 0; begin <= text.size(); ++count) {
    const size_t end = std::min(text.find_first_of(",/", begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    const std::optional<double> weight = number(word);
    if (count == weights.size() || !weight || *weight < 0) {
      throw UsageError(str("the split '", text, "' ",
                           count == weights.size() ? "has more than three weights"
                                                   : str("holds '", word, "', which is no weight")),
                       kSplitHelp);
    }
    weights[count] = *weight;
    begin = end + 1;
  }
  return weights;
}

}  // namespace

std::array<SequenceRange, 3> split_ranges(std::string_view text, int64_t sequences) {
  const std::array<double, 3> weights = parse_weights(text);
  const double sum = weights[0] + weights[1] + weights[2];
  if (!(sum > 0 && std::isfinite(sum))) {
    throw UsageError(str("the weights of the split '", text, "' add up to ", sum), kSplitHelp);
  }
  std::array<int64_t, 4> bounds{};
  for (size_t i = 0; i < weights.size(); ++i) {
    const double share = weights[i] / sum * static_cast<double>(sequences);
    bounds[i + 1] = bounds[i] + static_cast<int64_t>(std::nearbyint(share));
  }
  const int64_t excess = bounds[3] - sequences;
  std::array<SequenceRange, 3> ranges;
  for (size_t i = 0; i < ranges.size(); ++i) {
    // A part without weight can push a boundary below 0.
    bounds[i + 1] = std::clamp<int64_t>(bounds[i + 1] - excess, bounds[i], sequences);
    ranges[i] = {bounds[i], bounds[i + 1]};
  }
  return ranges;
}

std::vector<BlendEntry> parse_blend(const std::vector<std::string>& words) {
  if (words.size() == 1) {
    return {{1.0, words.front()}};
  }
  if (words.empty() || words.size() % 2 != 0) {
    throw UsageError(str("a blend of ", words.size(), " words is not made of pairs"), kBlendHelp);
  }
  std::vector<BlendEntry> blend;
  double sum = 0;
  for (size_t i = 0; i < words.size(); i += 2) {
    const std::optional<double> weight = number(words[i]);
    if (!weight || *weight <= 0) {
      throw UsageError(str("the weight '", words[i], "' of ", words[i + 1],
                           " in the blend is not a number above 0"),
                       kBlendHelp);
    }
    blend.push_back({*weight, words[i + 1]});
    sum += *weight;
  }
  for (BlendEntry& entry : blend) {
    entry.weight /= sum;
  }
  return blend;
}

}  // namespace reknit
