// Tokens that are found in the text itself, before it is split and merged.
#include "reknit/text/added_tokens.h"

#include <algorithm>

#include "reknit/base/error.h"
#include "reknit/text/pattern.h"
#include "reknit/text/split.h"
#include "reknit/text/utf8.h"

namespace reknit {
namespace {

bool is_word(std::string_view character) {
  static const Regex word(word_class());
  Regex::Span span;
  return Regex::Matches(word, character).next(span);
}

size_t previous_start(std::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) {
    --start;
  }
  return start;
}

bool word_before(std::string_view text, size_t position) {
  if (position == 0) {
    return false;
  }
  const size_t start = previous_start(text, position);
  return is_word(text.substr(start, position - start));
}

bool word_after(std::string_view text, size_t position) {
  return position < text.size() && is_word(text.substr(position, utf8_step(text, position).size));
}

size_t spaces_begin(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t start = previous_start(text, end);
    if (!is_white_space(utf8_step(text, start).code_point)) {
      break;
    }
    end = start;
  }
  return end;
}

size_t spaces_end(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Step step = utf8_step(text, begin);
    if (!is_white_space(step.code_point)) {
      break;
    }
    begin += step.size;
  }
  return begin;
}

}  // namespace

void AddedTokens::Trie::insert(const AddedToken& token) {
  size_t node = 0;
  for (const char c : token.content) {
    const uint8_t byte = static_cast<uint8_t>(c);
    const auto [edge, fresh] = nodes_[node].next.try_emplace(byte, nodes_.size());
    node = edge->second;
    if (fresh) {
      nodes_.emplace_back();
    }
  }
  nodes_[node].token = static_cast<int64_t>(tokens_.size());
  tokens_.push_back(token);
  first_[static_cast<uint8_t>(token.content.front())] = true;
}

void AddedTokens::Trie::erase(std::string_view content) {
  size_t node = 0;
  for (const char c : content) {
    const auto edge = nodes_[node].next.find(static_cast<uint8_t>(c));
    if (edge == nodes_[node].next.end()) {
      return;
    }
    node = edge->second;
  }
  nodes_[node].token = -1;
}

const AddedToken* AddedTokens::Trie::longest(std::string_view text, size_t position) const {
  int64_t best = -1;
  size_t node = 0;
  for (; position < text.size(); ++position) {
    const auto edge = nodes_[node].next.find(static_cast<uint8_t>(text[position]));
    if (edge == nodes_[node].next.end()) {
      break;
    }
    node = edge->second;
    best = nodes_[node].token >= 0 ? nodes_[node].token : best;
  }
  return best < 0 ? nullptr : &tokens_[best];
}

size_t AddedTokens::Trie::candidate(std::string_view text, size_t position) const {
  while (position < text.size() && !first_[static_cast<uint8_t>(text[position])]) {
    ++position;
  }
  return position;
}

void AddedTokens::add(const AddedToken& token) {
  REKNIT_INVARIANT(!token.content.empty(), "an added token without content");
  raw_.erase(token.content);
  normalized_.erase(token.content);
  (token.normalized ? normalized_ : raw_).insert(token);
  tokens_[token.content] = token;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = tokens_.find(content);
  return found == tokens_.end() ? nullptr : &found->second;
}

// A token that begins within white space that the one before has taken along still
// counts, as in the Python package.
void AddedTokens::split_by(const Trie& trie, std::string_view text,
                           std::vector<TextPiece>& pieces) {
  size_t done = 0;
  for (size_t position = trie.candidate(text, 0); position < text.size();
       position = trie.candidate(text, position)) {
    const AddedToken* token = trie.longest(text, position);
    if (token == nullptr) {
      ++position;
      continue;
    }
    size_t begin = position;
    size_t end = position + token->content.size();
    position = end;
    if (token->single_word && (word_before(text, begin) || word_after(text, end))) {
      continue;
    }
    if (token->lstrip) {
      begin = std::max(spaces_begin(text, begin), done);
    }
    if (token->rstrip) {
      end = spaces_end(text, end);
    }
    if (done < begin) {
      pieces.push_back({-1, text.substr(done, begin - done)});
    }
    pieces.push_back({token->id, {}});
    done = end;
  }
  if (done != text.size()) {
    pieces.push_back({-1, text.substr(done)});
  }
}

std::vector<TextPiece> AddedTokens::split(std::string_view text) const {
  std::vector<TextPiece> first;
  split_by(raw_, text, first);
  if (normalized_.empty()) {
    return first;
  }
  std::vector<TextPiece> pieces;
  for (const TextPiece& piece : first) {
    if (piece.id >= 0) {
      pieces.push_back(piece);
    } else {
      split_by(normalized_, piece.text, pieces);
    }
  }
  return pieces;
}

}  // namespace reknit
