// Any bytes as a file of torch.save, or as its pickle: refused with InputError, or readable.
#include <ATen/ATen.h>

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"
#include "reknit/checkpoint/pickle.h"
#include "reknit/checkpoint/unpickler.h"
#include "reknit/checkpoint/zip_archive.h"

namespace {

// The elements at both ends; a view with strides of zero may have any number between.
void touch(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return;
  }
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
  const auto end = static_cast<size_t>(last + 1) * tensor.element_size();
  volatile uint8_t kept = static_cast<uint8_t>(bytes[0] + bytes[end - 1]);
  static_cast<void>(kept);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    if (!reknit::looks_like_zip(bytes)) {
      const reknit::Pickle pickle(bytes, "fuzz");
      return 0;
    }
    const reknit::TorchFile file(reknit::MappedFile::of_bytes("fuzz", bytes));
    for (const reknit::TensorInfo& info : file.tensors()) {
      touch(file.read(info.name));
    }
  } catch (const reknit::InputError&) {
  }
  return 0;
}
