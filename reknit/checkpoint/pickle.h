// pytorch_model.bin: the zip form of torch.save, read without running any of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "reknit/checkpoint/tensor_info.h"

namespace reknit {

/// A state dict (name -> tensor or parameter) in a file of torch.save. Its
/// structure is checked whole before the constructor returns: storages exist and
/// are long enough, every view stays inside its storage. Immutable; threads may
/// read at once.
class TorchFile {
 public:
  /// Throws InputError naming the file and what is wrong: the pre-1.6 form (with
  /// the command that converts it), a name that Python would have to import, a
  /// damaged archive, a tensor that leaves its storage.
  explicit TorchFile(const std::string& path);
  explicit TorchFile(std::shared_ptr<const MappedFile> file);

  /// In the order of the file; keys whose values are no tensors are left out.
  const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }

  /// A host tensor over the mapped file, which it keeps alive, with the strides
  /// it was saved with; tensors that shared a storage share it again. Throws
  /// InputError if there is none of that name.
  at::Tensor read(const std::string& name) const;

 private:
  struct View {
    int64_t offset;  // bytes from the start of the file
    std::vector<int64_t> strides;
  };

  std::shared_ptr<const MappedFile> file_;
  std::vector<TensorInfo> tensors_;
  std::vector<View> views_;  // of tensors_[i]
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace reknit
