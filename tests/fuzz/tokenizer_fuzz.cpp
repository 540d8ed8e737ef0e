// Any bytes as a tokenizer.json and a text: refused with InputError, or the text comes
// back the same from whole and streamed decoding.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "reknit/base/error.h"
#include "reknit/text/tokenizer.h"

// A NUL byte ends the file; what follows is the text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t end = bytes.find('\0');
  const std::string_view text = end == std::string_view::npos ? "" : bytes.substr(end + 1);
  try {
    const auto tokenizer = reknit::Tokenizer::from_json(bytes.substr(0, end), "fuzz");
    const std::vector<int64_t> ids = tokenizer.encode(text);
    reknit::StreamDecoder stream(tokenizer);
    std::string streamed;
    for (const int64_t id : ids) {
      if (id < 0 || id >= tokenizer.vocabulary_size() || tokenizer.token(id).empty()) {
        std::abort();
      }
      streamed += stream.add(id);
    }
    if (streamed + stream.finish() != tokenizer.decode(ids)) {
      std::abort();
    }
  } catch (const reknit::InputError&) {
  }
  return 0;
}
