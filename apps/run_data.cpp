// reknit data: builds token files from text, and shows what they hold.
#include "apps/commands.h"
#include "apps/progress.h"
#include "reknit/base/format.h"
#include "reknit/data/blend.h"
#include "reknit/data/build.h"

#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

namespace reknit {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTokensShown = 24;

std::string with_unit(double bytes) {
  const char* unit = "bytes";
  for (const char* next : {"kB", "MB", "GB", "TB"}) {
    if (bytes < 1000) {
      break;
    }
    bytes /= 1000;
    unit = next;
  }
  return format(unit[0] == 'b' ? "%.0f %s" : "%.1f %s", bytes, unit);
}

void print_tokens(std::span<const int64_t> tokens, const std::optional<Tokenizer>& tokenizer) {
  const auto shown = std::min<int64_t>(std::ssize(tokens), kTokensShown);
  std::cout << "   ";
  for (const int64_t token : tokens.first(shown)) {
    std::cout << " " << token;
  }
  std::cout << (shown < std::ssize(tokens) ? " ..." : "") << "\n";
  if (tokenizer) {
    const std::string text = tokenizer->decode(tokens.first(shown), false);
    std::cout << "    " << nlohmann::json(text).dump() << "\n";
  }
}

void print_sizes(const TokenFile& file) {
  int64_t least = INT64_MAX;
  int64_t most = 0;
  int64_t empty = 0;
  for (int64_t i = 0; i < file.sequences(); ++i) {
    const int64_t length = file.length(i);
    least = std::min(least, length);
    most = std::max(most, length);
    empty += length == 0;
  }
  const double mean = static_cast<double>(file.tokens()) / static_cast<double>(file.sequences());
  std::cout << "documents   " << file.documents() << "\n"
            << "sequences   " << file.sequences() << "\n"
            << "tokens      " << file.tokens() << "\n"
            << "type        " << to_string(file.type()) << "\n"
            << "size        "
            << with_unit(static_cast<double>(file.tokens() * bytes_of(file.type()))) << "\n"
            << "lengths     " << least << " to " << most << " tokens, " << str(mean)
            << " on average\n";
  if (empty > 0) {
    std::cout << "empty       " << empty << " sequences\n";
  }
}

void print_sequences(const TokenFile& file, const DataShowOptions& options,
                     const std::optional<Tokenizer>& tokenizer) {
  for (int64_t i = 0; i < std::min(options.count, file.sequences()); ++i) {
    std::vector<int64_t> tokens(std::min(file.length(i), kTokensShown + 1));
    file.read(i, 0, tokens);
    std::cout << "\nsequence " << i << ", " << file.length(i) << " tokens:\n";
    print_tokens(tokens, tokenizer);
  }
}

void print_samples(const TokenFile& file, const DataShowOptions& options,
                   const std::optional<Tokenizer>& tokenizer) {
  const TokenBlend blend(parse_blend({options.prefix}));
  const GptDatasetSpec spec{options.sequence_length, static_cast<uint64_t>(options.seed)};
  const auto ranges = split_ranges(options.split, file.sequences());
  const char* const names[] = {"train", "valid", "test"};
  for (const Part part : {Part::kTrain, Part::kValid, Part::kTest}) {
    const auto data = blend.part(options.split, part, spec);
    const auto i = static_cast<size_t>(part);
    std::cout << (i == 0 ? "\n" : "") << names[i] << ": sequences " << ranges[i].begin << " to "
              << ranges[i].end;
    if (data == nullptr) {
      std::cout << ": none\n";
      continue;
    }
    const GptDataset& only = *data->sources().front().data;
    std::cout << ", " << only.tokens_per_epoch() << " tokens, " << only.samples_in(1)
              << " samples of " << options.sequence_length << " + 1 tokens an epoch\n";
  }
  const auto train = blend.part(options.split, Part::kTrain, spec);
  for (int64_t i = 0; train != nullptr && i < options.count; ++i) {
    std::vector<int64_t> tokens(options.sequence_length + 1);
    train->read(i, tokens);
    const GptDataset& only = *train->sources().front().data;
    const GptDataset::Row row = only.row(only.place_of(i));
    std::cout << "\nsample " << i << ", from token " << row.offset << " of sequence "
              << only.sequence_at(row.position) << " on:\n";
    print_tokens(tokens, tokenizer);
  }
}

}  // namespace

int run_data_build(const DataBuildOptions& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer_dir);
  BuildSpec spec;
  spec.inputs.assign(options.inputs.begin(), options.inputs.end());
  spec.prefix = options.out;
  spec.key = options.json_key;
  spec.append_end = options.append_end;
  spec.workers = options.workers;
  int64_t total = 0;
  for (const fs::path& input : spec.inputs) {
    std::error_code none;  // a pipe has no size
    total += fs::is_regular_file(input, none) ? static_cast<int64_t>(fs::file_size(input)) : 0;
  }
  const auto start = std::chrono::steady_clock::now();
  BuildCounts counts;
  {
    Progress progress("kB read", total / 1000, stderr);
    counts =
        build_token_file(spec, tokenizer, [&](int64_t bytes) { progress.advance(bytes / 1000); });
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const auto bytes = static_cast<double>(counts.text_bytes);
  std::cout << options.out << ": " << counts.documents << " documents, " << counts.tokens
            << " tokens of " << bytes_of(counts.type) << " bytes ("
            << static_cast<double>(counts.tokens) / static_cast<double>(counts.documents)
            << " a document, " << bytes / static_cast<double>(counts.tokens)
            << " bytes of text a token)\n"
            << with_unit(bytes) << " of text in " << duration_text(seconds.count()) << ", "
            << with_unit(bytes / seconds.count()) << "/s\n";
  if (counts.left_out > 0) {
    std::cout << "left out: " << counts.left_out << " rows without text\n";
  }
  return 0;
}

int run_data_show(const DataShowOptions& options) {
  const auto file = TokenFile::open(options.prefix);
  std::optional<Tokenizer> tokenizer;
  if (!options.tokenizer_dir.empty()) {
    tokenizer = Tokenizer::load(options.tokenizer_dir);
  }
  std::cout << file->prefix() << "\n";
  print_sizes(*file);
  if (options.sequence_length > 0) {
    print_samples(*file, options, tokenizer);
  } else {
    print_sequences(*file, options, tokenizer);
  }
  return 0;
}

}  // namespace reknit
