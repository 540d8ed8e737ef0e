// Row files: prompts, texts, completions, preferences, conversations and tokens as
// JSON lines or one JSON array, plain or gzip.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reknit {

/// One turn of a conversation.
struct Message {
  std::string role;
  std::string content;
  bool operator==(const Message&) const = default;
};

/// The value of a row's key: exactly one of the three.
struct Field {
  enum class Kind { kText, kMessages, kTokens };
  Kind kind = Kind::kText;
  std::string text;
  std::vector<Message> messages;  ///< not empty
  std::vector<int64_t> tokens;    ///< each at least 0
};

/// One row. A row may hold more than its reader needs (a preference row serves as a
/// prompt, too); at least one field is there, and chosen and rejected come together
/// with a prompt. A key whose value is null counts as absent.
struct Row {
  std::optional<Field> prompt;
  std::optional<Field> text;
  std::optional<Field> completion;
  std::optional<Field> chosen;
  std::optional<Field> rejected;
  std::optional<Field> messages;  ///< always kMessages
  std::optional<Field> tokens;    ///< always kTokens
  std::string other = "{}";       ///< all other keys, as the text of a JSON object
  std::string place;              ///< "FILE, line 7" or "FILE, row 7", from 1

  /// Throws InputError at `place`: `what` is wrong with this row.
  [[noreturn]] void fail(const std::string& what) const;
};

/// Reads the rows of one file in order; JSON lines are read as they come, an array
/// is held whole. Throws InputError that names file, line or row, and what was found.
class RowReader {
 public:
  explicit RowReader(const std::filesystem::path& path);
  ~RowReader();
  RowReader(RowReader&&) noexcept;
  RowReader& operator=(RowReader&&) noexcept;

  /// False at the end; then `row` is untouched.
  bool next(Row& row);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The row that `json` (one object) states; `place` is used in errors.
Row parse_row(std::string_view json, const std::string& place);

/// All rows of the files, in order. Throws InputError if there is no row at all.
std::vector<Row> read_rows(const std::vector<std::filesystem::path>& paths);

/// The order in which `epoch` visits n rows: a permutation of 0 to n-1 that is a
/// pure function of its arguments (Fisher-Yates on Philox).
std::vector<int64_t> permutation(uint64_t seed, int64_t epoch, int64_t n);

}  // namespace reknit
