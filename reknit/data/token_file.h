// Token files: Megatron's memory-mapped pair PREFIX.bin and PREFIX.idx.
//
//   .idx, little-endian      offset  content
//                                 0  "MMIDIDX" and two zero bytes
//                                 9  u64  version, 1
//                                17  u8   code of the tokens' type (TokenType)
//                                18  u64  N, the number of sequences
//                                26  u64  D, the number of document entries
//                                34  N x i32  lengths, in tokens
//                              + 4N  N x i64  places in .bin, in bytes
//                              + 8N  D x i64  first sequence of each document; then N
//   .bin                             the tokens, one sequence after the other
//
// A document is a run of sequences; sequences and documents may be empty.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reknit/base/atomic_file.h"
#include "reknit/base/mapped_file.h"

namespace reknit {

/// The codes are those of the file.
enum class TokenType : uint8_t {
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kF64 = 6,
  kF32 = 7,
  kU16 = 8,
};

const char* to_string(TokenType type);
int64_t bytes_of(TokenType type);

/// What Megatron takes for a vocabulary: 16 bits below 65500 entries, else 32.
TokenType token_type_for(int64_t vocabulary_size);

/// A pair that is open for reading. Immutable; any number of threads may read. The index
/// is checked whole when it is opened, so that no read can leave the files.
class TokenFile {
 public:
  /// `prefix` may also be the name of either file. Throws InputError that names the file
  /// and the value that is wrong; also for a pair without any token.
  static std::shared_ptr<const TokenFile> open(const std::string& prefix);
  /// The same over files that are open. The index decides how large .bin must be at least.
  TokenFile(std::shared_ptr<const MappedFile> index, std::shared_ptr<const MappedFile> tokens);

  /// Without .bin or .idx.
  const std::string& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }

  /// Tokens of sequence `sequence` (0 to sequences() - 1).
  int64_t length(int64_t sequence) const;
  /// Where the sequence begins in .bin, in bytes.
  int64_t place(int64_t sequence) const;
  /// The first sequence of document `document` (0 to documents(); the last gives sequences()).
  int64_t document_begin(int64_t document) const;

  /// Copies the tokens from `first` on, as many as `out` holds; they must lie within the
  /// sequence. Throws InputError for a token below 0 or not whole.
  void read(int64_t sequence, int64_t first, std::span<int64_t> out) const;

 private:
  void check_header();
  void check_sequences();
  void check_documents();
  [[noreturn]] void fail(const std::string& what, const std::string& help = "") const;

  std::shared_ptr<const MappedFile> index_;
  std::shared_ptr<const MappedFile> data_;
  std::string prefix_;
  TokenType type_ = TokenType::kU16;
  int64_t sequences_ = 0;
  int64_t documents_ = 0;
  int64_t tokens_ = 0;
};

/// Writes a pair; both files appear in commit(), or neither. One thread. Memory: 4 bytes a
/// sequence and 8 a document.
class TokenFileWriter {
 public:
  /// Makes the folders above. Throws UsageError if the files cannot be created.
  TokenFileWriter(const std::string& prefix, TokenType type);

  /// Throws InputError for a token that the type cannot hold, WriteError for a full disk.
  void add_sequence(std::span<const int64_t> tokens);
  /// Ends the document that the sequences since the last call make up; it may be empty.
  void end_document();

  int64_t sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t documents() const { return static_cast<int64_t>(documents_.size()) - 1; }
  int64_t tokens() const { return tokens_; }

  /// Ends an open document. An older index is removed before the older tokens are replaced,
  /// so that no moment shows one of each. Throws WriteError. Once only.
  void commit();

 private:
  void write_index();

  AtomicFile data_;
  AtomicFile index_;
  TokenType type_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_{0};
  int64_t tokens_ = 0;
  std::string buffer_;
};

}  // namespace reknit
