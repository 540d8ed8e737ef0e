// Row files: prompts, texts, completions, preferences, conversations and tokens.
#include "reknit/data/rows.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>

#include "reknit/base/error.h"
#include "reknit/base/random.h"
#include "reknit/data/json_parse.h"
#include "reknit/data/lines.h"

namespace reknit {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kKinds =
    "a row is an object with prompt, text, prompt and completion, prompt with chosen and "
    "rejected, messages, or tokens";

[[noreturn]] void fail_at(const std::string& place, const std::string& what,
                          const std::string& help = "") {
  throw InputError(str(place, ": ", what), help);
}

// A short form of what was found.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) {
    text = text.substr(0, 57) + "...";
  }
  return text;
}

Message read_message(const json& value, const std::string& key, const std::string& place) {
  const auto part = [&](const char* name) {
    if (!value.is_object() || !value.contains(name) || !value.at(name).is_string()) {
      fail_at(place, str("'", key, "' holds ", shown(value),
                         ", not an object with the texts role "
                         "and content"));
    }
    return value.at(name).get<std::string>();
  };
  return {part("role"), part("content")};
}

int64_t read_token(const json& value, const std::string& key, const std::string& place) {
  if (!value.is_number_integer() || value < 0 || value > INT32_MAX) {
    fail_at(place, str("'", key, "' holds ", shown(value), ", which is no token id"));
  }
  return value.get<int64_t>();
}

Field read_tokens(const json& value, const std::string& key, const std::string& place) {
  Field field{Field::Kind::kTokens, {}, {}, {}};
  if (!value.is_array()) {
    fail_at(place, str("'", key, "' is ", shown(value), ", not a list of token ids"));
  }
  for (const json& token : value) {
    field.tokens.push_back(read_token(token, key, place));
  }
  return field;
}

Field read_messages(const json& value, const std::string& key, const std::string& place) {
  Field field{Field::Kind::kMessages, {}, {}, {}};
  if (!value.is_array() || value.empty()) {
    fail_at(place, str("'", key, "' is ", shown(value), ", not a list of messages"));
  }
  for (const json& message : value) {
    field.messages.push_back(read_message(message, key, place));
  }
  return field;
}

Field read_field(const json& value, const std::string& key, const std::string& place) {
  if (key == "messages") {
    return read_messages(value, key, place);
  }
  if (key == "tokens") {
    return read_tokens(value, key, place);
  }
  if (value.is_string()) {
    return {Field::Kind::kText, value.get<std::string>(), {}, {}};
  }
  if (value.is_object() && value.size() == 1 && value.contains("tokens")) {
    return read_tokens(value.at("tokens"), key, place);
  }
  if (value.is_array()) {
    return read_messages(value, key, place);
  }
  fail_at(place, str("'", key, "' is ", shown(value),
                     ", not a text, a list of messages or an "
                     "object with tokens"));
}

void check_kind(const Row& row, const json& object) {
  if (row.chosen.has_value() != row.rejected.has_value()) {
    row.fail(str("'", row.chosen ? "chosen" : "rejected", "' without '",
                 row.chosen ? "rejected" : "chosen", "'"));
  }
  for (const auto& [key, field] :
       {std::pair{"chosen", &row.chosen}, {"completion", &row.completion}}) {
    if (*field && !row.prompt) {
      row.fail(str("'", key, "' without 'prompt'"));
    }
  }
  if (!row.prompt && !row.text && !row.messages && !row.tokens) {
    std::string keys;
    for (const auto& [key, value] : object.items()) {
      keys += (keys.empty() ? "" : ", ") + key;
    }
    fail_at(row.place, str("none of the known keys among (", keys, ")"), kKinds);
  }
}

Row row_of(const json& value, const std::string& place) {
  if (!value.is_object()) {
    fail_at(place, str("the row is ", shown(value), ", not an object"), kKinds);
  }
  Row row;
  row.place = place;
  const std::array<std::pair<std::string_view, std::optional<Field>*>, 7> fields = {
      {{"prompt", &row.prompt},
       {"text", &row.text},
       {"completion", &row.completion},
       {"chosen", &row.chosen},
       {"rejected", &row.rejected},
       {"messages", &row.messages},
       {"tokens", &row.tokens}}};
  json other = json::object();
  for (const auto& [key, part] : value.items()) {
    const auto known = std::find_if(
        fields.begin(), fields.end(),
        [name = std::string_view(key)](const auto& field) { return field.first == name; });
    if (known == fields.end()) {
      other[key] = part;
    } else if (!part.is_null()) {
      *known->second = read_field(part, key, place);
    }
  }
  check_kind(row, value);
  row.other = other.dump();
  return row;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

void Row::fail(const std::string& what) const {
  fail_at(place, what);
}

struct RowReader::State {
  explicit State(const fs::path& path) : lines(path) {}

  // The first line that is not blank decides between lines and an array.
  void read_array(std::string line) {
    std::string whole = std::move(line);
    while (lines.next(line)) {
      whole += '\n';
      whole += line;
    }
    array = parse_foreign_json(whole, lines.name());
  }

  bool next_of_array(Row& row) {
    if (done == array.size()) {
      return false;
    }
    const json value = std::exchange(array[done], nullptr);
    row = row_of(value, str(lines.name(), ", row ", ++done));
    return true;
  }

  Lines lines;
  bool started = false;
  json array;  ///< null for JSON lines
  size_t done = 0;
};

RowReader::RowReader(const fs::path& path) : state_(std::make_unique<State>(path)) {}
RowReader::~RowReader() = default;
RowReader::RowReader(RowReader&&) noexcept = default;
RowReader& RowReader::operator=(RowReader&&) noexcept = default;

bool RowReader::next(Row& row) {
  State& state = *state_;
  std::string line;
  while (state.array.is_null() && state.lines.next(line)) {
    if (is_blank(line)) {
      continue;
    }
    if (!std::exchange(state.started, true) && line[line.find_first_not_of(" \t")] == '[') {
      state.read_array(std::move(line));
      break;
    }
    row = parse_row(line, str(state.lines.name(), ", line ", state.lines.number()));
    return true;
  }
  return !state.array.is_null() && state.next_of_array(row);
}

Row parse_row(std::string_view text, const std::string& place) {
  return row_of(parse_foreign_json(text, place), place);
}

std::vector<Row> read_rows(const std::vector<fs::path>& paths) {
  std::vector<Row> rows;
  std::string names;
  for (const fs::path& path : paths) {
    RowReader reader(path);
    for (Row row; reader.next(row); row = Row()) {
      rows.push_back(std::move(row));
    }
    names += (names.empty() ? "" : ", ") + path.string();
  }
  if (rows.empty()) {
    throw InputError(str("no rows in ", names), kKinds);
  }
  return rows;
}

std::vector<int64_t> permutation(uint64_t seed, int64_t epoch, int64_t n) {
  constexpr uint64_t kPurpose = 0x726F7773;  // "rows"
  const Philox philox{mix(mix(seed, kPurpose), static_cast<uint64_t>(epoch))};
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = n - 1; i > 0; --i) {
    uint32_t words[4];
    philox.block(static_cast<uint64_t>(i), 0, words);
    const uint64_t bits = static_cast<uint64_t>(words[0]) << 32 | words[1];
    const auto wide = static_cast<unsigned __int128>(bits) * static_cast<uint64_t>(i + 1);
    std::swap(order[i], order[static_cast<int64_t>(wide >> 64)]);
  }
  return order;
}

}  // namespace reknit
