// Hand-made token files and what they are refused for.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reknit/base/error.h"
#include "reknit/data/gpt_dataset.h"
#include "reknit/data/token_file.h"
#include "tests/support/temp_folder.h"

namespace reknit {

/// The fields of an index, as a test may want them wrong.
struct HandMadeIndex {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t code = 8;
  std::vector<int32_t> lengths;
  std::vector<int64_t> places;
  std::vector<int64_t> documents;
  uint64_t sequences_off_by = 0;  ///< added to the count in the header
  uint64_t entries_off_by = 0;

  std::string bytes() const {
    std::string out = magic;
    const auto put = [&out](const auto& value) {
      out.append(reinterpret_cast<const char*>(&value), sizeof(value));
    };
    put(version);
    put(code);
    put(static_cast<uint64_t>(lengths.size()) + sequences_off_by);
    put(static_cast<uint64_t>(documents.size()) + entries_off_by);
    for (const int32_t length : lengths) {
      put(length);
    }
    for (const int64_t place : places) {
      put(place);
    }
    for (const int64_t document : documents) {
      put(document);
    }
    return out;
  }
};

/// One document a sequence, tokens of two bytes.
inline HandMadeIndex index_of(const std::vector<int32_t>& lengths) {
  HandMadeIndex index;
  index.lengths = lengths;
  int64_t place = 0;
  for (const int32_t length : lengths) {
    index.places.push_back(place);
    place += int64_t{2} * length;
  }
  for (int64_t i = 0; i <= std::ssize(lengths); ++i) {
    index.documents.push_back(i);
  }
  return index;
}

inline std::shared_ptr<const TokenFile> open_bytes(std::string index, std::string tokens) {
  return std::make_shared<const TokenFile>(MappedFile::of_bytes("t.idx", std::move(index)),
                                           MappedFile::of_bytes("t.bin", std::move(tokens)));
}

/// A file in memory in which token t of sequence s is 100 * s + t.
inline std::shared_ptr<const TokenFile> numbered_file(const std::vector<int32_t>& lengths) {
  std::string tokens;
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int32_t t = 0; t < lengths[s]; ++t) {
      const auto value = static_cast<uint16_t>(100 * s + t);
      tokens.append(reinterpret_cast<const char*>(&value), 2);
    }
  }
  return open_bytes(index_of(lengths).bytes(), tokens);
}

/// What `call` is refused for; its kind must be ErrorType.
template <class ErrorType = InputError, class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const ErrorType& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace reknit
