// The safetensors format: a file of named tensors, read by mapping, written in place.
//
//   | 8 bytes: N, little-endian | N bytes: JSON header | tensors, without gaps |
//
// The header maps each name to {"dtype", "shape", "data_offsets": [begin, end)},
// offsets counted from the end of the header; "__metadata__" maps text to text.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reknit/base/atomic_file.h"
#include "reknit/checkpoint/tensor_info.h"

namespace reknit {

/// One file, its header checked whole before the constructor returns: dtypes,
/// shapes, sizes, and that the tensors cover the data without gap or overlap.
/// Immutable; threads may read at once.
class SafetensorsFile {
 public:
  /// Throws InputError naming the file, the tensor and the offending value.
  explicit SafetensorsFile(const std::string& path);
  explicit SafetensorsFile(std::shared_ptr<const MappedFile> file);

  /// In the order of the data.
  const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }

  /// A host tensor over the mapped file, which it keeps alive. Throws InputError
  /// if there is none of that name.
  at::Tensor read(const std::string& name) const;

 private:
  std::shared_ptr<const MappedFile> file_;
  std::vector<TensorInfo> tensors_;
  std::vector<int64_t> offsets_;  // in the file, of tensors_[i]
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

/// Writes one file, tensor by tensor in any order, holding none of them. The
/// file is under its name only after commit() (see AtomicFile).
class SafetensorsWriter {
 public:
  /// What will be written. Throws UsageError if the path cannot be created or a
  /// dtype has no name in the format, StateError if a name comes twice.
  SafetensorsWriter(std::string path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  /// Writes one tensor, of any device and strides. Throws StateError if it was
  /// not announced with this dtype and shape or comes twice, WriteError if the
  /// disk is full or fails.
  void write(const std::string& name, const at::Tensor& tensor);

  /// Throws StateError if a tensor is missing, WriteError if the disk fails.
  void commit();

 private:
  struct Place {
    TensorInfo info;
    int64_t offset;
    bool written;
  };

  AtomicFile file_;
  std::unordered_map<std::string, Place> places_;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes all of `tensors` at once.
void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace reknit
