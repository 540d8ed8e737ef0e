// What the tests of this folder share: a folder that goes away, and golden files.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace reknit {

/// The seed files of tests/fuzz/corpus/<harness>.
inline std::vector<std::string> fuzz_seeds(const std::string& harness) {
  std::vector<std::string> paths;
  const auto folder = source_root() / "tests/fuzz/corpus";
  for (const auto& entry : std::filesystem::directory_iterator(folder / harness)) {
    paths.push_back(entry.path().string());
  }
  return paths;
}

/// The sentence of the Error that `call` must throw.
template <class ErrorType, class Call>
std::string sentence_of(Call call) {
  try {
    call();
  } catch (const ErrorType& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace reknit
