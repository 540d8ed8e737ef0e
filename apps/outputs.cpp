#include "apps/outputs.h"

#include "reknit/base/error.h"
#include "reknit/text/tokenizer.h"

#include <algorithm>
#include <filesystem>

namespace reknit {
namespace {

namespace fs = std::filesystem;

// Without links, as far as it exists.
fs::path canonical(const std::string& path) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(path, error);
  return error ? fs::path(path).lexically_normal() : found;
}

bool is_in(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

// The first of `inputs` that is `folder` or lies in it; empty: none.
std::string input_in(const fs::path& folder, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    if (!input.empty() && is_in(canonical(input), folder)) {
      return input;
    }
  }
  return "";
}

bool is_model_file(const fs::path& file, const std::vector<fs::path>& of_tokenizer) {
  const std::string name = file.filename().string();
  return name == "config.json" || name == "generation_config.json" ||
         file.extension() == ".safetensors" || name.ends_with(".safetensors.index.json") ||
         std::find(of_tokenizer.begin(), of_tokenizer.end(), name) != of_tokenizer.end();
}

}  // namespace

void require_out_file(const std::string& flag, const std::string& path) {
  if (path.empty()) {
    return;
  }
  if (fs::is_directory(path)) {
    throw UsageError(str(flag, " ", path, " is a folder, not a file"), "name a file in it");
  }
  const fs::path folder = fs::absolute(path).parent_path();
  if (!fs::is_directory(folder)) {
    throw UsageError(str(flag, " ", path, ": there is no folder ", folder.string()),
                     "make it first");
  }
}

void keep_inputs_from_file(const std::string& flag, const std::string& path,
                           const std::vector<std::string>& inputs) {
  std::error_code none;
  if (path.empty() || !fs::is_regular_file(path, none)) {
    return;  // a pipe or a device is not replaced
  }
  const fs::path out = canonical(path);
  for (const std::string& input : inputs) {
    if (!input.empty() && is_in(out, canonical(input))) {
      throw UsageError(str(flag, " ", path, " would replace ",
                           fs::is_directory(input, none) ? "a file of " : "", "the input ", input),
                       "name another file");
    }
  }
}

void keep_inputs_from_run(const TrainOptions& o, std::vector<std::string> inputs) {
  inputs.push_back(o.config_file);
  keep_inputs_from_file("--trace", o.trace_file, inputs);
  if (o.out.empty()) {
    return;
  }
  const fs::path out = canonical(o.out);
  if (const std::string input = input_in(out, inputs); o.overwrite && !input.empty()) {
    throw UsageError(str("--overwrite would remove the input ", input, " with --out ", o.out),
                     "pass another --out");
  }
  for (const char* model : {"actor", "critic", "actor_ema", "model"}) {
    if (const std::string input = input_in(out / model, inputs); !input.empty()) {
      throw UsageError(str("the run would replace its input ", input,
                           " with the model that it writes into --out ", o.out),
                       "pass another --out");
    }
  }
}

void require_replaceable_model(const std::string& out) {
  std::error_code none;
  if (!fs::is_directory(out, none)) {
    return;
  }
  const std::vector<fs::path> of_tokenizer = tokenizer_files(out);
  for (const fs::directory_entry& entry : fs::directory_iterator(out)) {
    const bool templates =
        entry.is_directory() && entry.path().filename() == "additional_chat_templates";
    if (!templates && !(entry.is_regular_file() && is_model_file(entry.path(), of_tokenizer))) {
      throw UsageError(
          str("--overwrite would remove ", entry.path().string(), ", which is no part of a model"),
          "pass another --out, or empty it yourself");
    }
  }
}

}  // namespace reknit
