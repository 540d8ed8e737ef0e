// Any bytes as a safetensors file: refused with InputError, or readable to the last byte.
#include <ATen/ATen.h>

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"
#include "reknit/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    const reknit::SafetensorsFile file(reknit::MappedFile::of_bytes("fuzz", bytes));
    for (const reknit::TensorInfo& info : file.tensors()) {
      const at::Tensor tensor = file.read(info.name);
      const auto* first = static_cast<const uint8_t*>(tensor.const_data_ptr());
      uint8_t sum = 0;
      for (size_t i = 0; i < tensor.nbytes(); ++i) {
        sum = static_cast<uint8_t>(sum + first[i]);
      }
      volatile uint8_t kept = sum;
      static_cast<void>(kept);
    }
  } catch (const reknit::InputError&) {
  }
  return 0;
}
