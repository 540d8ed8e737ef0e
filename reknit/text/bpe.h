// Byte-pair encoding of one word.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reknit/text/word_cache.h"

namespace reknit {

/// Token text (bytes written in the byte-level alphabet) to id.
using Vocabulary = std::unordered_map<std::string, int64_t>;

/// A BPE model as its file states it.
struct BpeSpec {
  Vocabulary vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  ///< best first
  std::string unknown;         ///< token for bytes without one; empty: they are dropped
  bool fuse_unknown = false;   ///< a run of unknown letters is one unknown token
  bool ignore_merges = false;  ///< a word that is a token needs no merges
};

/// Merges bytes to tokens. Thread-safe after construction.
class Bpe {
 public:
  /// Throws InputError if a merge names a token that the vocabulary lacks.
  explicit Bpe(BpeSpec spec);

  /// Appends the ids of `word` (raw bytes, valid UTF-8, one piece of the split). `cache` is
  /// used for this model alone.
  void encode(std::string_view word, WordCache& cache, std::vector<int64_t>& ids) const;

  const Vocabulary& vocabulary() const { return spec_.vocabulary; }

 private:
  struct Merge {
    uint64_t pair;  ///< left id << 32 | right id
    uint32_t rank;
    uint32_t id;
  };

  void insert(const Merge& merge);
  const Merge* find(int64_t left, int64_t right) const;
  std::vector<int64_t> symbols_of(std::string_view word) const;
  std::vector<int64_t> merge(std::vector<int64_t> symbols) const;
  std::vector<int64_t> encode_uncached(std::string_view word) const;

  BpeSpec spec_;
  std::array<int64_t, 256> byte_ids_;  ///< -1: no token
  int64_t unknown_id_ = -1;
  std::vector<Merge> table_;  ///< open addressing, a power of two
};

}  // namespace reknit
