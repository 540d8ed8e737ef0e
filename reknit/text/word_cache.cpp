#include "reknit/text/word_cache.h"

#include <algorithm>
#include <cstring>

#include "reknit/base/random.h"

namespace reknit {
namespace {

constexpr size_t kFewestPlaces = 1 << 10;
constexpr size_t kMostPlaces = 1 << 18;

uint64_t hash_of(std::string_view word) {
  uint64_t hash = word.size();
  while (word.size() > 8) {
    uint64_t eight;
    std::memcpy(&eight, word.data(), 8);
    hash = mix(hash, eight);
    word.remove_prefix(8);
  }
  uint64_t last = 0;
  std::memcpy(&last, word.data(), word.size());
  return mix(hash, last);
}

}  // namespace

WordCache::WordCache() : table_(kFewestPlaces) {}

size_t WordCache::place_of(std::string_view word, uint64_t hash) const {
  size_t place = hash & (table_.size() - 1);
  while (table_[place].word_size != 0) {
    const Entry& entry = table_[place];
    if (entry.hash == hash &&
        std::string_view(words_.data() + entry.word_begin, entry.word_size) == word) {
      break;
    }
    place = (place + 1) & (table_.size() - 1);
  }
  return place;
}

bool WordCache::find(std::string_view word, std::vector<int64_t>& ids) const {
  const Entry& entry = table_[place_of(word, hash_of(word))];
  if (entry.word_size == 0) {
    return false;
  }
  const int32_t* begin = ids_.data() + entry.ids_begin;
  ids.insert(ids.end(), begin, begin + entry.id_count);
  return true;
}

void WordCache::add(std::string_view word, std::span<const int64_t> ids) {
  if (word.empty() || word.size() > kLongestWord) {
    return;
  }
  if (2 * used_ == table_.size()) {
    make_room();
  }
  const uint64_t hash = hash_of(word);
  table_[place_of(word, hash)] = {
      hash, static_cast<uint32_t>(words_.size()), static_cast<uint32_t>(ids_.size()),
      static_cast<uint16_t>(word.size()), static_cast<uint16_t>(ids.size())};
  words_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

void WordCache::make_room() {
  std::vector<Entry> old(std::min(2 * table_.size(), kMostPlaces));
  std::swap(old, table_);
  if (table_.size() == old.size()) {
    words_.clear();
    ids_.clear();
    used_ = 0;
    return;
  }
  for (const Entry& entry : old) {
    if (entry.word_size != 0) {
      table_[place_of({words_.data() + entry.word_begin, entry.word_size}, entry.hash)] = entry;
    }
  }
}

WordCachePool::Loan::Loan(WordCachePool& pool) : pool_(pool) {
  {
    const std::lock_guard lock(pool.mutex_);
    if (!pool.free_.empty()) {
      cache_ = std::move(pool.free_.back());
      pool.free_.pop_back();
    }
  }
  if (cache_ == nullptr) {
    cache_ = std::make_unique<WordCache>();
  }
}

WordCachePool::Loan::~Loan() {
  const std::lock_guard lock(pool_.mutex_);
  pool_.free_.push_back(std::move(cache_));
}

}  // namespace reknit
