#include "apps/run_folder.h"

#include "reknit/base/atomic_file.h"
#include "reknit/base/log.h"

#include <filesystem>
#include <fstream>

namespace reknit {
namespace {

namespace fs = std::filesystem;

}  // namespace

RunFolder::RunFolder(std::string path, bool overwrite) : path_(std::move(path)) {
  if (!exists()) {
    return;
  }
  std::error_code error;
  if (overwrite) {
    fs::remove_all(path_, error);
  }
  fs::create_directories(path_, error);
  require<UsageError>(!error, "cannot create the run folder ", path_, ": ", error.message());
  set_log_file(file("log.txt"));
}

RunFolder::~RunFolder() {
  for (std::FILE* open : {metrics_, samples_}) {
    if (open != nullptr) {
      std::fclose(open);
    }
  }
  if (exists()) {
    set_log_file("");
  }
}

void RunFolder::resume_after(int64_t step) {
  for (const char* name : {"metrics.jsonl", "samples.jsonl"}) {
    if (!exists() || !fs::exists(file(name))) {
      continue;
    }
    std::ifstream in(file(name));
    std::string kept;
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      // A line that a crash cut short belongs to a step that is repeated.
      if (!json.is_discarded() && json.value("step", int64_t{0}) <= step) {
        kept += line + "\n";
      }
    }
    write_file(file(name), kept);
  }
}

void RunFolder::append(std::FILE*& open, const std::string& name, const std::string& lines) {
  if (!exists() || lines.empty()) {
    return;
  }
  if (open == nullptr) {
    open = std::fopen(file(name).c_str(), "a");
  }
  const bool written = open != nullptr &&
                       std::fwrite(lines.data(), 1, lines.size(), open) == lines.size() &&
                       std::fflush(open) == 0;
  require<InputError>(written, "cannot write ", file(name));
}

void RunFolder::metrics(const nlohmann::ordered_json& line) {
  append(metrics_, "metrics.jsonl", line.dump() + "\n");
}

void RunFolder::samples(const std::string& lines) {
  append(samples_, "samples.jsonl", lines);
}

void RunFolder::write(const std::string& name, const std::string& text) const {
  if (exists()) {
    write_file(file(name), text);
  }
}

}  // namespace reknit
