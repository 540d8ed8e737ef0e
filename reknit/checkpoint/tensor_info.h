// Name, dtype and shape of a stored tensor, and views of mapped bytes as tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace reknit {

class MappedFile;

/// What is known about a stored tensor without reading it.
struct TensorInfo {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;

  /// Elements; the makers of infos guarantee that it fits.
  int64_t numel() const;
  /// numel() times the size of an element.
  int64_t bytes() const;
};

/// The info of a tensor at hand.
TensorInfo info_of(std::string name, const at::Tensor& tensor);

/// "[2, 3]" for messages.
std::string shape_text(const std::vector<int64_t>& shape);

/// Elements times `element_bytes`. Throws InputError("<what> ...") if a size is
/// negative or the product does not fit 63 bits.
int64_t checked_bytes(const std::vector<int64_t>& shape, int64_t element_bytes,
                      const std::string& what);

/// A host tensor over the file's bytes from `offset` on, which keeps `file`
/// alive. The caller has checked that all elements lie inside the file. Bytes
/// that are not aligned for `dtype` are copied, all others are a view.
at::Tensor tensor_over(const std::shared_ptr<const MappedFile>& file, int64_t offset,
                       at::ScalarType dtype, const std::vector<int64_t>& shape,
                       const std::vector<int64_t>& strides);

/// As above, row-major.
at::Tensor tensor_over(const std::shared_ptr<const MappedFile>& file, int64_t offset,
                       const TensorInfo& info);

}  // namespace reknit
