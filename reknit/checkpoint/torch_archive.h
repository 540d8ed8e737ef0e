// A file of torch.save: the tree of its pickle, and the tensors in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reknit/checkpoint/tensor_info.h"
#include "reknit/checkpoint/unpickler.h"
#include "reknit/checkpoint/zip_archive.h"

namespace reknit {

/// A tensor of the tree, its bytes not yet read.
struct StoredTensor {
  TensorInfo info;
  int64_t offset = 0;  ///< bytes from the start of the file
  std::vector<int64_t> strides;
};

/// Immutable; threads may read at once.
class TorchArchive {
 public:
  /// Throws InputError naming the file and what is wrong: the pre-1.6 form (with the
  /// command that converts it), a name that Python would have to import, a damaged archive.
  TorchArchive(std::shared_ptr<const MappedFile> file, PickleNames names);

  const std::string& path() const;
  const PickleValue& root() const { return pickle_->root(); }

  /// The tensor that `value` is, parameters around it taken off; none: it is no tensor.
  /// `name` is for messages. Throws InputError if its storage is missing or too short.
  std::optional<StoredTensor> tensor(const std::string& name, const PickleValue& value) const;
  /// A host tensor over the mapped file, which it keeps alive.
  at::Tensor read(const StoredTensor& tensor) const;

  /// The entry below the archive's one folder; null: there is none.
  const ZipEntry* find(const std::string& name) const;

 private:
  std::string_view bytes(const ZipEntry& entry) const;

  std::shared_ptr<const MappedFile> file_;
  std::vector<ZipEntry> entries_;
  std::string folder_;
  std::unordered_map<std::string_view, const ZipEntry*> by_name_;
  std::unique_ptr<Pickle> pickle_;
};

}  // namespace reknit
