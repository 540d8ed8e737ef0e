#include "reknit/config/json_text.h"

#include "reknit/base/error.h"
#include "reknit/base/json_problem.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

namespace reknit {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 128;

struct Place {
  size_t line = 1;
  size_t column = 1;
};

Place place_of(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const size_t newline = before.rfind('\n');
  return {1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n')),
          newline == std::string_view::npos ? before.size() + 1 : before.size() - newline};
}

[[noreturn]] void syntax_error(const std::string& name, std::string_view text, size_t offset,
                               const std::string& what) {
  const Place place = place_of(text, offset);
  throw UsageError(str(name, ", line ", place.line, ", column ", place.column, ": ", what),
                   "the file must be JSON (comments and trailing commas are allowed)");
}

/// Replaces comments and trailing commas by blanks; every byte keeps its offset.
class Cleaner {
 public:
  Cleaner(std::string_view text, const std::string& name) : text_(text), out_(text), name_(name) {}

  std::string run() {
    while (at_ < text_.size()) {
      if (text_[at_] == '"') {
        skip_string();
        last_ = '"';
      } else if (starts("//") || starts("/*")) {
        blank_comment();
      } else {
        take(text_[at_]);
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  bool starts(std::string_view word) const { return text_.substr(at_, word.size()) == word; }

  void skip_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n'; ++at_) {
      at_ += text_[at_] == '\\' ? 1 : 0;
    }
    ++at_;
  }

  void blank_comment() {
    const bool line = starts("//");
    const size_t end = line ? text_.find('\n', at_) : text_.find("*/", at_ + 2);
    if (!line && end == std::string_view::npos) {
      syntax_error(name_, text_, at_, "a comment is not closed");
    }
    const size_t stop = end == std::string_view::npos ? text_.size() : end + (line ? 0 : 2);
    for (; at_ < stop; ++at_) {
      out_[at_] = text_[at_] == '\n' ? '\n' : ' ';
    }
  }

  void take(char c) {
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      return;
    }
    if ((c == '}' || c == ']') && last_ == ',' && before_comma_ != '\0' &&
        std::string_view("[{,:").find(before_comma_) == std::string_view::npos) {
      out_[comma_] = ' ';
    }
    if (c == ',') {
      comma_ = at_;
      before_comma_ = last_;
    }
    last_ = c;
  }

  std::string_view text_;
  std::string out_;
  const std::string& name_;
  size_t at_ = 0;
  size_t comma_ = 0;
  char last_ = '\0';          ///< the last character that is neither blank nor comment
  char before_comma_ = '\0';  ///< the one before the last comma
};

/// Builds the value while it watches for repeated keys and for depth.
class Builder : public json::json_sax_t {
 public:
  Builder(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    Level& level = levels_.back();
    if (value.find('\0') != std::string::npos) {
      throw UsageError(str(name_, ": a key holds a zero character"), "no key of a config does");
    }
    level.key = value;
    if (!level.keys.insert(value).second) {
      throw UsageError(str(name_, ": the key ", path(), " is given twice"),
                       "keep one of the two values");
    }
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    std::string what = json_problem(error);
    if (const size_t colon = what.find(": "); colon != std::string::npos) {
      what = what.substr(colon + 2);  // nlohmann heads it with its own line and column
    }
    syntax_error(name_, text_, position == 0 ? 0 : position - 1, what);
  }

 private:
  struct Level {
    json* value;
    std::string key;
    std::set<std::string> keys;
  };

  json* place(json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.value->is_array()) {
      level.value->push_back(std::move(value));
      return &level.value->back();
    }
    return &((*level.value)[level.key] = std::move(value));
  }

  bool add(json value) {
    place(std::move(value));
    return true;
  }

  bool open(json value) {
    if (levels_.size() >= kMaxDepth) {
      throw UsageError(str(name_, ": ", path(), " is nested more than ", kMaxDepth, " deep"),
                       "no key of a config needs that");
    }
    levels_.push_back({place(std::move(value)), "", {}});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  std::string path() const {
    std::string out;
    for (const Level& level : levels_) {
      if (level.value->is_array()) {
        // What is read now is in all but the innermost already.
        out += str("[", level.value->size() - (&level == &levels_.back() ? 0 : 1), "]");
      } else {
        out += (out.empty() ? "" : ".") + level.key;
      }
    }
    return out;
  }

  std::string_view text_;
  const std::string& name_;
  json root_;
  std::vector<Level> levels_;
};

}  // namespace

json parse_json_text(std::string_view text, const std::string& name) {
  const std::string clean = Cleaner(text, name).run();
  if (clean.find_first_not_of(" \t\r\n") == std::string::npos) {
    syntax_error(name, text, 0, "the text is empty");
  }
  Builder builder(text, name);
  json::sax_parse(clean, &builder);
  return builder.take();
}

json read_json_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (std::filesystem::is_directory(path)) {
    throw InputError(str(path, " is a folder, not a JSON file"), "check the path");
  }
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) {
    throw InputError(str("cannot read ", path), "check the path");
  }
  return parse_json_text(text, path);
}

std::string show_json(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 80) {
    text = text.substr(0, 77) + "...";
  }
  return text;
}

}  // namespace reknit
