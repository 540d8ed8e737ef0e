// Name, dtype and shape of a stored tensor, and views of mapped bytes as tensors.
#include "reknit/checkpoint/tensor_info.h"

#include <algorithm>
#include <cstring>

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"

namespace reknit {
namespace {

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

// One past the last element that the strided view touches, in elements.
int64_t extent(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t last = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) {
      return 0;
    }
    last += (shape[i] - 1) * strides[i];
  }
  return last + 1;
}

}  // namespace

int64_t TensorInfo::numel() const {
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  return count;
}

int64_t TensorInfo::bytes() const {
  return numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

TensorInfo info_of(std::string name, const at::Tensor& tensor) {
  return {std::move(name), tensor.scalar_type(), tensor.sizes().vec()};
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

int64_t checked_bytes(const std::vector<int64_t>& shape, int64_t element_bytes,
                      const std::string& what) {
  // A dimension of zero must not hide an overflow of the others: strides are
  // computed with max(size, 1).
  int64_t product = element_bytes;
  bool empty = false;
  for (const int64_t size : shape) {
    require<InputError>(size >= 0, what, " has the negative size ", size);
    empty = empty || size == 0;
    require<InputError>(!__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product),
                        what, " has shape ", shape_text(shape), ", which is too large");
  }
  return empty ? 0 : product;
}

at::Tensor tensor_over(const std::shared_ptr<const MappedFile>& file, int64_t offset,
                       at::ScalarType dtype, const std::vector<int64_t>& shape,
                       const std::vector<int64_t>& strides) {
  const auto options = at::TensorOptions().dtype(dtype);
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t elements = extent(shape, strides);
  REKNIT_INVARIANT(offset >= 0 && offset + elements * element_bytes <=
                                      static_cast<int64_t>(file->bytes().size()),
                   "a view leaves ", file->path());
  const char* data = file->bytes().data() + offset;
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element_bytes) != 0) {
    at::Tensor copy = at::empty({elements}, options);
    if (elements > 0) {
      std::memcpy(copy.data_ptr(), data, static_cast<size_t>(elements * element_bytes));
    }
    return copy.as_strided(shape, strides);
  }
  return at::from_blob(
      const_cast<char*>(data), shape, strides, [file](void*) {}, options);
}

at::Tensor tensor_over(const std::shared_ptr<const MappedFile>& file, int64_t offset,
                       const TensorInfo& info) {
  return tensor_over(file, offset, info.dtype, info.shape, row_major_strides(info.shape));
}

}  // namespace reknit
