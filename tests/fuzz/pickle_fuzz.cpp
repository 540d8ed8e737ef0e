// Any bytes as a file of torch.save, or as its pickle: refused with InputError, or readable.
#include <ATen/ATen.h>

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"
#include "reknit/checkpoint/pickle.h"
#include "reknit/checkpoint/torch_archive.h"
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

/// Values inside values, as DeepSpeed's files nest them; at most `left` of them, since a
/// value may hold itself.
void walk(const reknit::TorchArchive& archive, const reknit::PickleValue& value, int depth,
          int& left) {
  if (const auto tensor = archive.tensor("fuzz", value)) {
    touch(archive.read(*tensor));
    return;
  }
  for (const reknit::PickleValue* item : value.items) {
    if (depth > 0 && left-- > 0) {
      walk(archive, *item, depth - 1, left);
    }
  }
}

template <class Read>
void expect_refused_or_read(const Read& read) {
  try {
    read();
  } catch (const reknit::InputError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (!reknit::looks_like_zip(bytes)) {
    for (const auto names : {reknit::PickleNames::kStateDict, reknit::PickleNames::kDeepSpeed}) {
      expect_refused_or_read([&] { const reknit::Pickle pickle(bytes, "fuzz", names); });
    }
    return 0;
  }
  expect_refused_or_read([&] {
    const reknit::TorchFile file(reknit::MappedFile::of_bytes("fuzz", bytes));
    for (const reknit::TensorInfo& info : file.tensors()) {
      touch(file.read(info.name));
    }
  });
  expect_refused_or_read([&] {
    const reknit::TorchArchive archive(reknit::MappedFile::of_bytes("fuzz", bytes),
                                       reknit::PickleNames::kDeepSpeed);
    int left = 10000;
    walk(archive, archive.root(), /*depth=*/6, left);
  });
  return 0;
}
