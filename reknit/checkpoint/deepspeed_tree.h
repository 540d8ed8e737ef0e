// Looking things up in the tree of one of DeepSpeed's files.
#pragma once

#include "reknit/checkpoint/torch_archive.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reknit {

/// One file of a DeepSpeed checkpoint. Immutable; threads may read at once.
class DeepSpeedFile {
 public:
  /// Throws InputError as TorchArchive, and if the file holds no dictionary.
  explicit DeepSpeedFile(const std::string& path);

  const TorchArchive& archive() const { return archive_; }
  const std::string& path() const { return archive_.path(); }
  const PickleValue& root() const { return archive_.root(); }

  /// Null where `dict` has no such key, or None under it.
  static const PickleValue* find(const PickleValue& dict, std::string_view key);
  /// Throws InputError naming the file and the key where find() gives null.
  const PickleValue& get(const PickleValue& dict, std::string_view key) const;
  const PickleValue& get(const PickleValue& dict, std::string_view key, PickleKind kind) const;

  /// An integer, an enumeration's value, or a tensor of one element; between -9e15 and 9e15, as
  /// no count is larger.
  int64_t integer(const PickleValue& value, std::string_view what) const;
  double real(const PickleValue& value, std::string_view what) const;
  StoredTensor tensor(const PickleValue& value, const std::string& name) const;
  /// Of a list or tuple.
  std::vector<StoredTensor> tensors(const PickleValue& list, const std::string& name) const;
  /// A torch.Size or a tuple of sizes.
  std::vector<int64_t> shape(const PickleValue& value, std::string_view what) const;

 private:
  TorchArchive archive_;
};

}  // namespace reknit
