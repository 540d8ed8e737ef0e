// Any bytes as a token file's index, with tokens behind it: refused with InputError, or every
// sequence and the first samples can be read.
#include "reknit/base/error.h"
#include "reknit/data/gpt_dataset.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string index(reinterpret_cast<const char*>(data), size);
  try {
    const auto file = std::make_shared<const reknit::TokenFile>(
        reknit::MappedFile::of_bytes("fuzz.idx", index),
        reknit::MappedFile::of_bytes("fuzz.bin", std::string(4096, '\1')));
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < file->sequences(); ++i) {
      tokens.resize(file->length(i));
      file->read(i, 0, tokens);
    }
    const int64_t length = 1 + static_cast<int64_t>(size % 40);
    const reknit::GptDataset samples(file, {0, file->sequences()}, {length, size});
    tokens.resize(length + 1);
    for (int64_t i = 0; i < 3; ++i) {
      samples.read(i, tokens);
    }
  } catch (const reknit::InputError&) {
  }
  return 0;
}
