// What the tests of this folder share: a folder that goes away, and golden files.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace reknit {

/// A fresh folder, removed with all it holds at the end.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "reknit_test_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  /// Names of all that the folder holds, hidden things too.
  size_t count() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) {
      ++count;
    }
    return count;
  }

 private:
  std::string path_;
};

inline void spit(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Runs a script of tests/golden with the Python that has torch; true if it succeeded.
inline bool run_golden(const std::string& script_and_arguments) {
  const std::string folder =
      (std::filesystem::path(REKNIT_TEST_DATA).parent_path() / "golden/").string();
  return std::system((std::string(REKNIT_TEST_PYTHON) + " " + folder + script_and_arguments +
                      " > /dev/null")
                         .c_str()) == 0;
}

/// The seed files of tests/fuzz/corpus/<harness>.
inline std::vector<std::string> fuzz_seeds(const std::string& harness) {
  std::vector<std::string> paths;
  const auto folder = std::filesystem::path(REKNIT_TEST_DATA).parent_path() / "fuzz/corpus";
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
