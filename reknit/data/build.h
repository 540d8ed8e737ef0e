// Text to token files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "reknit/data/token_file.h"
#include "reknit/text/tokenizer.h"

namespace reknit {

struct BuildSpec {
  std::vector<std::filesystem::path> inputs;  ///< JSON lines or one array, also gzip
  std::string prefix;                         ///< of the pair to write
  std::string key = "text";                   ///< the member of a row that holds the text
  bool append_end = true;                     ///< the tokenizer's end token after each document
  int64_t workers = 1;                        ///< threads that encode
};

struct BuildCounts {
  TokenType type = TokenType::kU16;
  int64_t documents = 0;
  int64_t left_out = 0;  ///< rows whose text is empty
  int64_t tokens = 0;
  int64_t text_bytes = 0;
};

/// Writes a document of one sequence for every row that has text, in the order of the
/// inputs whatever `workers` is; start tokens and the like are not added. `progress` is told
/// how many bytes of the inputs have been read, by one thread at a time. Memory: some 256
/// KiB of text a worker, and TokenFileWriter's. Throws InputError (file and line of the first
/// row that is wrong; no text at all), UsageError (a tokenizer without an end token), WriteError,
/// or CommError (a worker that the system does not start); nothing is left then.
BuildCounts build_token_file(const BuildSpec& spec, const Tokenizer& tokenizer,
                             const std::function<void(int64_t bytes_read)>& progress);

}  // namespace reknit
