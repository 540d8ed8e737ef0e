// Samples for pretraining: token files cut into rows of equal length, in a seeded order.
//
// The sequences of a data set, in a new order every epoch, make one endless stream of
// tokens. With T tokens an epoch and rows of L tokens, place k of the stream is the L + 1
// tokens from token k * L on: inputs are all but the last of them, labels all but the
// first, and the last one is where place k + 1 begins. Places that begin in the same epoch
// are visited in a random order of their own, epoch after epoch. So sample i is a pure
// function of (seed, i): not of the number of steps, of ranks, or of what was read before.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "reknit/data/random_order.h"
#include "reknit/data/splits.h"
#include "reknit/data/token_file.h"

namespace reknit {

/// The number in the data set's order of sequence `index` of the global batch of `step`
/// (both from 0). Ranks take runs of `index`, so no sample depends on their number.
inline int64_t sample_of(int64_t step, int64_t index, int64_t global_batch) {
  return step * global_batch + index;
}

struct GptDatasetSpec {
  int64_t sequence_length = 0;  ///< L, at least 1; a sample has L + 1 tokens
  uint64_t seed = 1234;
  bool shuffle = true;          ///< false: sequences and places in the file's order
  int64_t vocabulary_size = 0;  ///< tokens must be below it; 0: any
};

/// One range of sequences of one token file. Immutable to its users; any number of threads
/// may call it. Memory: an eighth of a byte per sequence for each of at most two epochs;
/// the first touch of an epoch reads all lengths once.
class GptDataset {
 public:
  /// Throws InputError if the range holds no token: no number of epochs makes a sample.
  GptDataset(std::shared_ptr<const TokenFile> file, SequenceRange range, GptDatasetSpec spec);

  const TokenFile& file() const { return *file_; }
  SequenceRange range() const { return range_; }
  int64_t sequence_length() const { return spec_.sequence_length; }
  int64_t tokens_per_epoch() const { return tokens_; }
  /// Samples that lie within the first `epochs` epochs whole: (epochs * T - 1) / L.
  int64_t samples_in(int64_t epochs) const;
  /// The least number of epochs with at least `samples` such samples.
  int64_t epochs_for(int64_t samples) const;

  /// Where place k begins: the position in the stream of sequences (position / n is the
  /// epoch, n the sequences of the range) and the token in that sequence.
  struct Row {
    int64_t position;
    int64_t offset;
    bool operator==(const Row&) const = default;
  };
  Row row(int64_t place) const;
  /// The sequence of the file at a position of the stream.
  int64_t sequence_at(int64_t position) const;
  /// The place that sample `sample` (from 0) is cut at.
  int64_t place_of(int64_t sample) const;

  /// Fills `out` (L + 1 tokens). Throws InputError for a token that is outside the vocabulary.
  void read(int64_t sample, std::span<int64_t> out) const;

 private:
  static constexpr int64_t kStride = 64;

  // starts[j]: tokens of the epoch before its position j * kStride.
  struct Epoch {
    int64_t number;
    std::vector<int64_t> starts;
  };

  RandomOrder sequence_order(int64_t epoch) const;
  int64_t sequence_in(const RandomOrder& order, int64_t position) const;
  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  std::shared_ptr<const Epoch> make_epoch(int64_t number) const;
  int64_t first_place(int64_t epoch) const;
  void check_tokens(int64_t sequence, int64_t first, std::span<const int64_t> tokens) const;

  std::shared_ptr<const TokenFile> file_;
  SequenceRange range_;
  GptDatasetSpec spec_;
  int64_t tokens_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const Epoch>> epochs_;  ///< last used last
};

}  // namespace reknit
