// Byte-pair encoding of one word.
#include "reknit/text/bpe.h"

#include <bit>
#include <queue>

#include "reknit/base/error.h"
#include "reknit/base/random.h"
#include "reknit/text/byte_level.h"
#include "reknit/text/utf8.h"

namespace reknit {
namespace {

constexpr uint64_t kEmpty = ~0ull;

uint64_t pair_key(int64_t left, int64_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right);
}

int64_t id_of(const Vocabulary& vocabulary, const std::string& token) {
  const auto found = vocabulary.find(token);
  if (found == vocabulary.end()) {
    throw InputError(str("the tokenizer's merges need the token '", token,
                         "', which its vocabulary does not hold"));
  }
  return found->second;
}

// A merge that may be due at `position`; stale ones are skipped when popped.
struct Candidate {
  uint32_t rank;
  uint32_t id;
  int64_t position;
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

struct Symbol {
  int64_t id;
  int64_t previous;
  int64_t next;
  bool alive;
};

}  // namespace

Bpe::Bpe(BpeSpec spec) : spec_(std::move(spec)) {
  table_.assign(std::bit_ceil(2 * spec_.merges.size() + 2), Merge{kEmpty, 0, 0});
  uint32_t rank = 0;
  for (const auto& [left, right] : spec_.merges) {
    const int64_t id = id_of(spec_.vocabulary, left + right);
    insert({pair_key(id_of(spec_.vocabulary, left), id_of(spec_.vocabulary, right)), rank++,
            static_cast<uint32_t>(id)});
  }
  spec_.merges.clear();
  spec_.merges.shrink_to_fit();
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    const auto found = spec_.vocabulary.find(to_byte_letters({&raw, 1}));
    byte_ids_[byte] = found == spec_.vocabulary.end() ? -1 : found->second;
  }
  if (!spec_.unknown.empty()) {
    const auto found = spec_.vocabulary.find(spec_.unknown);
    if (found == spec_.vocabulary.end()) {
      throw InputError(
          str("the tokenizer's unknown token '", spec_.unknown, "' is not in its vocabulary"));
    }
    unknown_id_ = found->second;
  }
}

// A pair that is listed twice keeps its last rank.
void Bpe::insert(const Merge& merge) {
  size_t slot = mix(merge.pair, 0) & (table_.size() - 1);
  while (table_[slot].pair != kEmpty && table_[slot].pair != merge.pair) {
    slot = (slot + 1) & (table_.size() - 1);
  }
  table_[slot] = merge;
}

const Bpe::Merge* Bpe::find(int64_t left, int64_t right) const {
  const uint64_t pair = pair_key(left, right);
  size_t slot = mix(pair, 0) & (table_.size() - 1);
  while (table_[slot].pair != kEmpty) {
    if (table_[slot].pair == pair) {
      return &table_[slot];
    }
    slot = (slot + 1) & (table_.size() - 1);
  }
  return nullptr;
}

std::vector<int64_t> Bpe::symbols_of(std::string_view word) const {
  std::vector<int64_t> symbols;
  symbols.reserve(word.size());
  bool after_unknown = false;
  for (const char byte : word) {
    const int64_t id = byte_ids_[static_cast<uint8_t>(byte)];
    if (id >= 0) {
      symbols.push_back(id);
    } else if (unknown_id_ >= 0 && !(after_unknown && spec_.fuse_unknown)) {
      symbols.push_back(unknown_id_);
    }
    after_unknown = id < 0;
  }
  return symbols;
}

std::vector<int64_t> Bpe::merge(std::vector<int64_t> ids) const {
  const int64_t count = static_cast<int64_t>(ids.size());
  std::vector<Symbol> symbols(ids.size());
  std::vector<Candidate> storage;
  storage.reserve(ids.size());
  std::priority_queue<Candidate> due(std::less<Candidate>(), std::move(storage));
  const auto consider = [&](int64_t left, int64_t right) {
    if (left < 0 || right >= count) {
      return;
    }
    if (const Merge* found = find(symbols[left].id, symbols[right].id)) {
      due.push({found->rank, found->id, left});
    }
  };
  for (int64_t i = 0; i < count; ++i) {
    symbols[i] = {ids[i], i - 1, i + 1, true};
  }
  for (int64_t i = 0; i + 1 < count; ++i) {
    consider(i, i + 1);
  }
  while (!due.empty()) {
    const Candidate top = due.top();
    due.pop();
    Symbol& left = symbols[top.position];
    if (!left.alive || left.next >= count) {
      continue;
    }
    Symbol& right = symbols[left.next];
    const Merge* current = find(left.id, right.id);
    if (current == nullptr || current->id != top.id) {
      continue;
    }
    left.id = top.id;
    left.next = right.next;
    right.alive = false;
    if (left.next < count) {
      symbols[left.next].previous = top.position;
    }
    consider(left.previous, top.position);
    consider(top.position, left.next);
  }
  ids.clear();
  for (int64_t i = 0; i < count; i = symbols[i].next) {
    ids.push_back(symbols[i].id);
  }
  return ids;
}

std::vector<int64_t> Bpe::encode_uncached(std::string_view word) const {
  if (spec_.ignore_merges) {
    const auto whole = spec_.vocabulary.find(to_byte_letters(word));
    if (whole != spec_.vocabulary.end()) {
      return {whole->second};
    }
  }
  return merge(symbols_of(word));
}

void Bpe::encode(std::string_view word, WordCache& cache, std::vector<int64_t>& ids) const {
  if (!cache.find(word, ids)) {
    const std::vector<int64_t> found = encode_uncached(word);
    ids.insert(ids.end(), found.begin(), found.end());
    cache.add(word, found);
  }
}

}  // namespace reknit
