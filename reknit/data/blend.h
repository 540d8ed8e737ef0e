// Several data sets as one: a weighted mixture in an order that is known beforehand.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "reknit/data/gpt_dataset.h"

namespace reknit {

/// Data sets mixed by weight. Sample i goes to the data set that is furthest behind its
/// share (the first of equals), and is that data set's next sample: 0.7 and 0.3 give
/// 0 1 0 0 1 0 0 1 0 0. Any number of data sets; one alone is passed through. Any number of
/// threads may call it. Memory: 2 MiB, and 8 bytes a data set for every 65536 samples; the
/// first touch of a sample counts through all that come before it, once.
class BlendedDataset {
 public:
  struct Source {
    double weight;  ///< above 0; the sum may be anything
    std::shared_ptr<const GptDataset> data;
  };
  /// At least one source, all of one sequence length.
  explicit BlendedDataset(std::vector<Source> sources);

  const std::vector<Source>& sources() const { return sources_; }
  int64_t sequence_length() const { return sources_.front().data->sequence_length(); }

  struct Choice {
    int64_t source;
    int64_t sample;
    bool operator==(const Choice&) const = default;
  };
  /// Which sample of which data set sample `sample` (from 0) is.
  Choice choice(int64_t sample) const;

  /// Fills `out` (sequence_length() + 1 tokens); errors are GptDataset::read's.
  void read(int64_t sample, std::span<int64_t> out) const;

 private:
  static constexpr int64_t kChunk = 1 << 16;

  struct Chunk {
    int64_t number;
    std::vector<Choice> choices;
  };

  std::shared_ptr<const Chunk> chunk(int64_t number) const;
  Choice next(int64_t sample, std::vector<int64_t>& taken) const;

  std::vector<Source> sources_;
  mutable std::mutex mutex_;
  mutable std::vector<std::vector<int64_t>> taken_;           ///< by data set, before each chunk
  mutable std::vector<std::shared_ptr<const Chunk>> chunks_;  ///< last used last
};

/// The files of a blend, open, and the parts of them.
class TokenBlend {
 public:
  /// Opens all; throws InputError.
  explicit TokenBlend(const std::vector<BlendEntry>& entries);

  const std::vector<std::shared_ptr<const TokenFile>>& files() const { return files_; }

  /// Part `part` of every file by `split` (splits.h), blended by the weights; files whose
  /// part is empty are left out. Null if that leaves none. Throws UsageError or InputError.
  std::shared_ptr<const BlendedDataset> part(std::string_view split, Part part,
                                             const GptDatasetSpec& spec) const;

 private:
  std::vector<BlendEntry> entries_;
  std::vector<std::shared_ptr<const TokenFile>> files_;
};

}  // namespace reknit
