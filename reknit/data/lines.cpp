#include "reknit/data/lines.h"

#include <zlib.h>

#include <algorithm>

#include "reknit/base/error.h"

namespace reknit {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_missing(const fs::path& path) {
  const std::string name = path.string();
  const bool file = path.extension() == ".json" || path.extension() == ".jsonl" ||
                    path.extension() == ".gz" || path.is_absolute();
  throw InputError(
      str("there is no file ", name),
      file ? ""
           : str("a data set's name is not looked up; write it out with: python -c \"import "
                 "datasets; datasets.load_dataset('",
                 name, "', split='train').to_json('rows.jsonl')\""));
}

// Formats of data sets that are not rows, by ending or by first bytes.
void refuse_other_formats(const fs::path& path, std::string_view begin) {
  const std::string name = path.string();
  if (path.extension() == ".parquet" || begin.starts_with("PAR1")) {
    throw InputError(str(name, " is a Parquet file, not rows of JSON"),
                     str("convert it with: python -c \"import pandas; pandas.read_parquet('", name,
                         "').to_json('rows.jsonl', orient='records', lines=True)\""));
  }
  if (path.extension() == ".arrow" || begin.starts_with("ARROW1")) {
    throw InputError(str(name, " is an Arrow file, not rows of JSON"),
                     str("convert it with: python -c \"import datasets; "
                         "datasets.Dataset.from_file('",
                         name, "').to_json('rows.jsonl')\""));
  }
}

}  // namespace

struct Lines::File {
  explicit File(const std::string& name) : handle(gzopen(name.c_str(), "rb")) {
    require<InputError>(handle != nullptr, "cannot read ", name);
    gzbuffer(handle, 1 << 17);
  }
  ~File() { gzclose_r(handle); }
  File(const File&) = delete;

  gzFile handle;
};

Lines::~Lines() = default;
Lines::Lines(Lines&&) noexcept = default;
Lines& Lines::operator=(Lines&&) noexcept = default;

Lines::Lines(const fs::path& path) : name_(path.string()) {
  if (fs::is_directory(path)) {
    throw InputError(str(name_, " is a folder, not a file of rows"),
                     str("if datasets wrote it: python -c \"import datasets; "
                         "datasets.load_from_disk('",
                         name_, "').to_json('rows.jsonl')\""));
  }
  if (!fs::exists(path)) {
    refuse_missing(path);
  }
  file_ = std::make_unique<File>(name_);
  fill();
  refuse_other_formats(path, std::string_view(buffer_).substr(0, 8));
  if (buffer_.starts_with("\xEF\xBB\xBF")) {
    position_ = 3;
  }
}

bool Lines::next(std::string& line) {
  line.clear();
  while (position_ < buffer_.size() || fill()) {
    const size_t end = buffer_.find('\n', position_);
    line.append(buffer_, position_, std::min(end, buffer_.size()) - position_);
    position_ = end == std::string::npos ? buffer_.size() : end + 1;
    if (end != std::string::npos) {
      ++number_;
      return true;
    }
  }
  number_ += line.empty() ? 0 : 1;
  return !line.empty();
}

int64_t Lines::bytes_read() const {
  return gzoffset(file_->handle);
}

bool Lines::fill() {
  buffer_.resize(1 << 17);
  position_ = 0;
  const int count = gzread(file_->handle, buffer_.data(), static_cast<unsigned>(buffer_.size()));
  buffer_.resize(std::max(count, 0));
  int error = Z_OK;
  const char* message = gzerror(file_->handle, &error);
  if (count < 0 || (error != Z_OK && error != Z_STREAM_END)) {
    throw InputError(str(name_, " is damaged after line ", number_, ": ", message));
  }
  return count > 0;
}

}  // namespace reknit
