// The objects of a JSON file and one text member of each, read fast.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace reknit {

/// The objects of a file of JSON lines, or of one JSON array, each as JSON text. Lines are
/// read as they come, an array is held whole.
class JsonObjects {
 public:
  /// Throws InputError as Lines does.
  explicit JsonObjects(const std::filesystem::path& path);
  ~JsonObjects();
  JsonObjects(JsonObjects&&) noexcept;

  /// One thread at a time. False at the end. Throws InputError for an array that is none.
  bool next(std::string& json);
  /// Of the object that next() gave: its line or row, from 1.
  int64_t number() const;
  /// The text at `key` of `json`, which next() gave with this number; null counts as empty,
  /// other members are passed over. Throws InputError that names the place: no JSON, no object,
  /// no such member (with those that are there), or one that is no text. Any thread.
  std::string text_of(std::string_view json, int64_t number, const std::string& key) const;
  /// As Lines::bytes_read.
  int64_t bytes_read() const;

 private:
  [[noreturn]] void fail(int64_t number, const std::string& what,
                         const std::string& help = "") const;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace reknit
