// The ids of words that have been seen.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reknit {

/// A table of words; it is emptied when it holds 131072. One thread at a time. Memory when
/// full: 6 MiB and the words themselves.
class WordCache {
 public:
  /// Longer words are not kept.
  static constexpr size_t kLongestWord = 256;

  WordCache();

  /// Appends the ids of `word` and returns true, if it is there.
  bool find(std::string_view word, std::vector<int64_t>& ids) const;
  /// Keeps a word that is not there.
  void add(std::string_view word, std::span<const int64_t> ids);

 private:
  struct Entry {
    uint64_t hash = 0;
    uint32_t word_begin = 0;
    uint32_t ids_begin = 0;
    uint16_t word_size = 0;  ///< 0: a free place
    uint16_t id_count = 0;
  };

  void make_room();
  size_t place_of(std::string_view word, uint64_t hash) const;

  std::vector<Entry> table_;  ///< open addressing, a power of two
  size_t used_ = 0;
  std::string words_;
  std::vector<int32_t> ids_;
};

/// Caches for any number of threads: each call takes one for itself. Thread-safe.
class WordCachePool {
 public:
  /// A cache that goes back at the end of the scope.
  class Loan {
   public:
    explicit Loan(WordCachePool& pool);
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    WordCache& operator*() const { return *cache_; }

   private:
    WordCachePool& pool_;
    std::unique_ptr<WordCache> cache_;
  };

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> free_;
};

}  // namespace reknit
