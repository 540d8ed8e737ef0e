// Tokens that are found in the text itself, before it is split and merged.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace reknit {

/// An entry of `added_tokens`.
struct AddedToken {
  int64_t id = -1;
  std::string content;
  bool special = false;      ///< left out by decode(skip_special)
  bool single_word = false;  ///< only where no word character touches it
  bool lstrip = false;       ///< takes the white space before it along
  bool rstrip = false;       ///< takes the white space after it along
  bool normalized = false;   ///< looked for after all that are not
};

/// A stretch of text: an added token (no `text`), or text for the model (`id` -1).
struct TextPiece {
  int64_t id = -1;
  std::string_view text;
};

/// The set of added tokens. Thread-safe once filled.
class AddedTokens {
 public:
  /// Replaces an entry of the same content. `content` is not empty.
  void add(const AddedToken& token);

  /// Null if `content` is no added token.
  const AddedToken* find(std::string_view content) const;

  const std::map<std::string, AddedToken, std::less<>>& all() const { return tokens_; }

  /// `text` cut at added tokens: the longest at the leftmost place, as the Python
  /// package `tokenizers` cuts. Pieces of text are not empty.
  std::vector<TextPiece> split(std::string_view text) const;

 private:
  /// Contents as a byte trie.
  class Trie {
   public:
    Trie() : nodes_(1) {}
    void insert(const AddedToken& token);
    void erase(std::string_view content);
    bool empty() const { return nodes_.size() == 1; }
    /// The longest token that `text` holds at `position`; null if none.
    const AddedToken* longest(std::string_view text, size_t position) const;
    /// The first position from `position` on where a token could begin.
    size_t candidate(std::string_view text, size_t position) const;

   private:
    struct Node {
      std::map<uint8_t, size_t> next;
      int64_t token = -1;
    };
    std::vector<Node> nodes_;
    std::vector<AddedToken> tokens_;
    std::array<bool, 256> first_{};
  };

  static void split_by(const Trie& trie, std::string_view text, std::vector<TextPiece>& pieces);

  std::map<std::string, AddedToken, std::less<>> tokens_;
  Trie raw_;
  Trie normalized_;
};

}  // namespace reknit
