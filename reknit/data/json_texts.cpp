#include "reknit/data/json_texts.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "reknit/base/error.h"
#include "reknit/base/json_problem.h"
#include "reknit/data/json_parse.h"
#include "reknit/data/lines.h"

namespace reknit {
namespace {

using nlohmann::json;

// Keeps the text of one member of the outermost object and nothing else.
class MemberReader : public json::json_sax_t {
 public:
  explicit MemberReader(const std::string& key) : key_(key) {}

  bool found() const { return found_; }
  bool object() const { return object_; }
  /// The kind of value that stands where a text should; null if a text or null does.
  const char* other_kind() const { return other_kind_; }
  const std::string& problem() const { return problem_; }
  std::string take() { return std::move(text_); }

  bool key(string_t& name) override {
    wanted_ = depth_ == 1 && name == key_;
    found_ |= wanted_;
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == 1 && wanted_) {
      text_ = std::move(value);
      other_kind_ = nullptr;
    }
    return true;
  }
  bool null() override { return settle(nullptr); }
  bool boolean(bool) override { return settle("true or false"); }
  bool number_integer(number_integer_t) override { return settle("a number"); }
  bool number_unsigned(number_unsigned_t) override { return settle("a number"); }
  bool number_float(number_float_t, const string_t&) override { return settle("a number"); }
  bool binary(binary_t&) override { return settle("binary"); }
  bool start_object(std::size_t) override {
    object_ |= depth_ == 0;
    settle("an object");
    ++depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    settle("a list");
    ++depth_;
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    problem_ = json_problem(error);
    return false;
  }

 private:
  bool settle(const char* kind) {
    if (depth_ == 1 && wanted_) {
      text_.clear();
      other_kind_ = kind;
    }
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  const std::string& key_;
  std::string text_;
  std::string problem_;
  const char* other_kind_ = nullptr;
  int64_t depth_ = 0;
  bool wanted_ = false;
  bool found_ = false;
  bool object_ = false;
};

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

std::string member_names(const json& object) {
  std::string names;
  for (const auto& [name, value] : object.items()) {
    names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

}  // namespace

struct JsonObjects::State {
  explicit State(const std::filesystem::path& path) : lines(path) {}

  void read_array(std::string& line) {
    std::string whole = std::move(line);
    while (lines.next(line)) {
      whole += '\n';
      whole += line;
    }
    array = parse_foreign_json(whole, lines.name());
  }

  Lines lines;
  std::optional<json> array;
  bool started = false;
  int64_t row = 0;
};

JsonObjects::JsonObjects(const std::filesystem::path& path)
    : state_(std::make_unique<State>(path)) {}
JsonObjects::~JsonObjects() = default;
JsonObjects::JsonObjects(JsonObjects&&) noexcept = default;

bool JsonObjects::next(std::string& line) {
  State& state = *state_;
  while (!state.array && state.lines.next(line)) {
    if (is_blank(line)) {
      continue;
    }
    if (!std::exchange(state.started, true) && line[line.find_first_not_of(" \t")] == '[') {
      state.read_array(line);
      break;
    }
    return true;
  }
  if (!state.array || state.row == std::ssize(*state.array)) {
    return false;
  }
  line = std::exchange((*state.array)[state.row++], nullptr).dump();
  return true;
}

int64_t JsonObjects::number() const {
  return state_->array ? state_->row : state_->lines.number();
}

void JsonObjects::fail(int64_t number, const std::string& what, const std::string& help) const {
  throw InputError(
      str(state_->lines.name(), state_->array ? ", row " : ", line ", number, ": ", what), help);
}

std::string JsonObjects::text_of(std::string_view text, int64_t number,
                                 const std::string& key) const {
  MemberReader reader(key);
  if (!json::sax_parse(text.begin(), text.end(), &reader)) {
    fail(number, str("is no JSON: ", reader.problem()),
         "a line is an object with a text: {\"text\": \"...\"}; docs/data.md shows how plain text "
         "becomes that");
  }
  if (!reader.object()) {
    fail(number, "the row is not an object");
  }
  constexpr const char* kHelp = "--json-key names the member that holds the text";
  if (!reader.found()) {
    fail(number, str("the row has no '", key, "' among (", member_names(json::parse(text)), ")"),
         kHelp);
  }
  if (reader.other_kind() != nullptr) {
    fail(number, str("'", key, "' is ", reader.other_kind(), ", not a text"), kHelp);
  }
  return reader.take();
}

int64_t JsonObjects::bytes_read() const {
  return state_->lines.bytes_read();
}

}  // namespace reknit
