// How fast does one core turn text into tokens? bench_data_build TOKENIZER FILE.jsonl
#include "reknit/base/error.h"
#include "reknit/data/json_texts.h"
#include "reknit/text/tokenizer.h"

#include <chrono>
#include <cstdio>

namespace {

double seconds(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_data_build TOKENIZER FILE.jsonl\n");
    return 2;
  }
  const auto tokenizer = reknit::Tokenizer::load(argv[1]);
  std::vector<std::string> rows;
  reknit::JsonObjects objects(argv[2]);
  const double reading = seconds([&] {
    for (std::string row; objects.next(row);) {
      rows.push_back(row);
    }
  });
  std::vector<std::string> texts;
  double bytes = 0;
  const double parsing = seconds([&] {
    for (const std::string& row : rows) {
      texts.push_back(objects.text_of(row, 0, "text"));
      bytes += static_cast<double>(texts.back().size());
    }
  });
  size_t tokens = 0;
  double encoding = 1e300;
  for (int pass = 0; pass < 2; ++pass) {  // the second finds most words in the cache
    tokens = 0;
    const double took = seconds([&] {
      for (const std::string& text : texts) {
        tokens += tokenizer.encode(text, false).size();
      }
    });
    std::printf("encode, pass %d: %6.1f MB/s\n", pass, bytes / 1e6 / took);
    encoding = std::min(encoding, took);
  }
  std::printf("read:   %6.1f MB/s\nparse:  %6.1f MB/s\nall:    %6.1f MB/s\n", bytes / 1e6 / reading,
              bytes / 1e6 / parsing, bytes / 1e6 / (reading + parsing + encoding));
  std::printf("%zu texts, %.1f MB, %zu tokens\n", texts.size(), bytes / 1e6, tokens);
}
