#include "reknit/data/token_file.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

#include "reknit/base/error.h"
#include "reknit/base/write_error.h"

namespace reknit {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::string_view kOldMagic("TNTIDX\0\0", 8);
constexpr int64_t kVersionAt = 9;
constexpr int64_t kTypeAt = 17;
constexpr int64_t kSequencesAt = 18;
constexpr int64_t kDocumentsAt = 26;
constexpr int64_t kHeaderBytes = 34;
constexpr size_t kBufferBytes = 1 << 20;
// Largest whole number below which a double holds every one.
constexpr double kWholeLimit = 0x1p53;

template <class T>
T load(std::string_view bytes, int64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

/// Calls `use` with a value of the C++ type that `type` names.
template <class Use>
auto with_type(TokenType type, Use use) {
  switch (type) {
    case TokenType::kU8:
      return use(uint8_t{});
    case TokenType::kI8:
      return use(int8_t{});
    case TokenType::kI16:
      return use(int16_t{});
    case TokenType::kI32:
      return use(int32_t{});
    case TokenType::kI64:
      return use(int64_t{});
    case TokenType::kF64:
      return use(double{});
    case TokenType::kF32:
      return use(float{});
    case TokenType::kU16:
      return use(uint16_t{});
  }
  throw StateError(str("no token type has the code ", static_cast<int>(type)));
}

template <class T>
bool is_token(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    const double wide = value;
    return wide >= 0 && wide <= kWholeLimit && std::floor(wide) == wide;
  } else {
    return value >= T{0};
  }
}

template <class T>
bool holds(int64_t token) {
  if constexpr (std::is_floating_point_v<T>) {
    return token >= 0 && token <= (int64_t{1} << std::numeric_limits<T>::digits);
  } else {
    return token >= 0 &&
           static_cast<uint64_t>(token) <= static_cast<uint64_t>(std::numeric_limits<T>::max());
  }
}

std::string without_ending(const std::string& name) {
  const bool either = name.ends_with(".bin") || name.ends_with(".idx");
  return either ? name.substr(0, name.size() - 4) : name;
}

}  // namespace

const char* to_string(TokenType type) {
  constexpr std::array kNames = {"uint8", "int8",    "int16",   "int32",
                                 "int64", "float64", "float32", "uint16"};
  return kNames.at(static_cast<size_t>(type) - 1);
}

int64_t bytes_of(TokenType type) {
  return with_type(type, [](auto value) { return static_cast<int64_t>(sizeof(value)); });
}

TokenType token_type_for(int64_t vocabulary_size) {
  return vocabulary_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

std::shared_ptr<const TokenFile> TokenFile::open(const std::string& prefix) {
  const std::string stem = without_ending(prefix);
  return std::make_shared<const TokenFile>(MappedFile::open(stem + ".idx"),
                                           MappedFile::open(stem + ".bin"));
}

TokenFile::TokenFile(std::shared_ptr<const MappedFile> index,
                     std::shared_ptr<const MappedFile> tokens)
    : index_(std::move(index)), data_(std::move(tokens)), prefix_(without_ending(index_->path())) {
  refuse_lfs_stub(*index_);
  refuse_lfs_stub(*data_);
  check_header();
  check_sequences();
  check_documents();
}

void TokenFile::fail(const std::string& what, const std::string& help) const {
  throw InputError(str(index_->path(), ": ", what), help);
}

void TokenFile::check_header() {
  const std::string_view bytes = index_->bytes();
  if (bytes.starts_with(kOldMagic)) {
    fail("is an index of the older form (TNTIDX, 'lazy' or 'cached'), not the memory-mapped one",
         "keep its .bin and write the index anew as docs/data.md shows, or make both again from "
         "the text with `reknit data build`");
  }
  if (!bytes.starts_with(kMagic)) {
    std::string found;
    for (const char c : bytes.substr(0, kMagic.size())) {
      found += str(found.empty() ? "" : " ", static_cast<int>(static_cast<uint8_t>(c)));
    }
    fail(str("is no index of tokens: it begins with the bytes (", found,
             "), not with MMIDIDX and two zeros"),
         "Megatron's preprocess_data.py --dataset-impl mmap and `reknit data build` write one");
  }
  const auto size = static_cast<int64_t>(bytes.size());
  if (size < kHeaderBytes) {
    fail(str("is cut off: ", size, " bytes, and the header alone has ", kHeaderBytes));
  }
  if (const auto version = load<uint64_t>(bytes, kVersionAt); version != 1) {
    fail(str("has version ", version, "; only version 1 is known"));
  }
  const auto code = load<uint8_t>(bytes, kTypeAt);
  if (code < 1 || code > 8) {
    fail(str("has the token type ", static_cast<int>(code), "; known are 1 to 8"));
  }
  type_ = static_cast<TokenType>(code);
  const auto sequences = load<uint64_t>(bytes, kSequencesAt);
  const auto entries = load<uint64_t>(bytes, kDocumentsAt);
  if (sequences == 0) {
    fail("holds 0 sequences");
  }
  const auto wanted = static_cast<unsigned __int128>(sequences) * 12 +
                      static_cast<unsigned __int128>(entries) * 8 + kHeaderBytes;
  if (wanted == static_cast<unsigned __int128>(size) - std::min<uint64_t>(sequences, size)) {
    fail(str("holds a mode for each of its ", sequences,
             " sequences (a multimodal index), which is not supported"));
  }
  if (wanted != static_cast<unsigned __int128>(size)) {
    const bool large = wanted > static_cast<unsigned __int128>(INT64_MAX);
    fail(str("has ", size, " bytes, but ", sequences, " sequences and ", entries,
             " document entries need ",
             large ? "more than 2^63" : str(static_cast<int64_t>(wanted)),
             ": it is cut off or damaged"));
  }
  if (entries == 0) {
    fail("has 0 document entries; the first must be 0, the last the number of sequences");
  }
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(entries) - 1;
}

void TokenFile::check_sequences() {
  const auto available = static_cast<int64_t>(data_->bytes().size());
  const int64_t item = bytes_of(type_);
  int64_t end = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t length = this->length(i);
    const int64_t place = this->place(i);
    if (length < 0) {
      fail(str("sequence ", i, " has ", length, " tokens"));
    }
    if (place < end) {
      fail(str("sequence ", i, " begins at byte ", place, " of .bin, before byte ", end,
               " where the one before it ends"),
           "an index whose places were added up in 32 bits looks like this; write it anew");
    }
    if (place > available || length * item > available - place) {
      fail(str("sequence ", i, " has ", length, " tokens of ", item, " bytes from byte ", place,
               " on, but ", data_->path(), " has ", available, " bytes"));
    }
    end = place + length * item;
    tokens_ += length;
  }
  if (tokens_ == 0) {
    fail(str("holds no tokens: all of its ", sequences_, " sequences are empty"));
  }
}

void TokenFile::check_documents() {
  int64_t last = 0;
  for (int64_t i = 0; i <= documents_; ++i) {
    const int64_t begin = document_begin(i);
    if (i == 0 && begin != 0) {
      fail(str("document entry 0 is ", begin, ", not 0"));
    }
    if (begin < last || begin > sequences_) {
      fail(str("document entry ", i, " is ", begin, ", outside ", last, " to ", sequences_,
               " (the entry before it and the number of sequences)"));
    }
    last = begin;
  }
  if (last != sequences_) {
    fail(str("the last document entry is ", last, ", not the number of sequences, ", sequences_));
  }
}

int64_t TokenFile::length(int64_t sequence) const {
  return load<int32_t>(index_->bytes(), kHeaderBytes + 4 * sequence);
}

int64_t TokenFile::place(int64_t sequence) const {
  return load<int64_t>(index_->bytes(), kHeaderBytes + 4 * sequences_ + 8 * sequence);
}

int64_t TokenFile::document_begin(int64_t document) const {
  return load<int64_t>(index_->bytes(), kHeaderBytes + 12 * sequences_ + 8 * document);
}

void TokenFile::read(int64_t sequence, int64_t first, std::span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  REKNIT_INVARIANT(sequence >= 0 && sequence < sequences_ && first >= 0 &&
                       first <= length(sequence) && count <= length(sequence) - first,
                   "tokens ", first, " to ", first + count, " of sequence ", sequence, " of ",
                   prefix_);
  with_type(type_, [&](auto kind) {
    using T = decltype(kind);
    const std::string_view bytes = data_->bytes();
    int64_t at = place(sequence) + first * static_cast<int64_t>(sizeof(T));
    for (int64_t& token : out) {
      const T value = load<T>(bytes, at);
      if (!is_token(value)) {
        throw InputError(str(data_->path(), ": sequence ", sequence, " holds ", +value, " at byte ",
                             at, ", which is no token id"));
      }
      token = static_cast<int64_t>(value);
      at += sizeof(T);
    }
  });
}

namespace {

const std::string& with_parents(const std::string& prefix) {
  make_parents(prefix);
  return prefix;
}

}  // namespace

TokenFileWriter::TokenFileWriter(const std::string& prefix, TokenType type)
    : data_(with_parents(prefix) + ".bin"), index_(prefix + ".idx"), type_(type) {}

void TokenFileWriter::add_sequence(std::span<const int64_t> tokens) {
  require<InputError>(tokens.size() <= INT32_MAX, data_.path(), ": a sequence of ", tokens.size(),
                      " tokens; an index counts up to ", INT32_MAX);
  with_type(type_, [&](auto kind) {
    using T = decltype(kind);
    size_t at = buffer_.size();
    buffer_.resize(at + tokens.size() * sizeof(T));
    for (const int64_t token : tokens) {
      if (!holds<T>(token)) [[unlikely]] {
        throw InputError(
            str(data_.path(), ": the token ", token, " does not fit into ", to_string(type_)));
      }
      const T value = static_cast<T>(token);
      std::memcpy(buffer_.data() + at, &value, sizeof(T));
      at += sizeof(T);
    }
  });
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  tokens_ += static_cast<int64_t>(tokens.size());
  if (buffer_.size() >= kBufferBytes) {
    data_.write(buffer_);
    buffer_.clear();
  }
}

void TokenFileWriter::end_document() {
  documents_.push_back(sequences());
}

void TokenFileWriter::write_index() {
  std::string header(kMagic);
  append(header, uint64_t{1});
  append(header, static_cast<uint8_t>(type_));
  append(header, static_cast<uint64_t>(lengths_.size()));
  append(header, static_cast<uint64_t>(documents_.size()));
  index_.write(header);
  const auto raw = [](const auto& values) {
    return std::string_view(reinterpret_cast<const char*>(values.data()),
                            values.size() * sizeof(values[0]));
  };
  index_.write(raw(lengths_));
  std::string places;
  int64_t place = 0;
  for (const int32_t length : lengths_) {
    append(places, place);
    place += length * bytes_of(type_);
    if (places.size() >= kBufferBytes) {
      index_.write(places);
      places.clear();
    }
  }
  index_.write(places);
  index_.write(raw(documents_));
}

void TokenFileWriter::commit() {
  if (documents_.back() != sequences()) {
    end_document();
  }
  data_.write(buffer_);
  write_index();
  if (::unlink(index_.path().c_str()) != 0 && errno != ENOENT) {
    throw WriteError(str("cannot replace ", index_.path(), ": ", std::strerror(errno)));
  }
  data_.commit();
  index_.commit();
}

}  // namespace reknit
