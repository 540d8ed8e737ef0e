#include "apps/foreign_flags.h"

#include "reknit/base/error.h"

#include <algorithm>
#include <cstdlib>

namespace reknit {
namespace {

using enum FlagKind;
using enum FlagFate;

const ForeignFlag* find(const ForeignFlags& table, std::string_view name) {
  const auto found = std::find_if(table.flags.begin(), table.flags.end(),
                                  [&](const ForeignFlag& flag) { return flag.name == name; });
  return found == table.flags.end() ? nullptr : &*found;
}

bool is_flag(const std::string& arg) {
  return arg.starts_with("--");
}

/// The values of the flag at args[i] that follow it, by its kind.
std::vector<std::string> values_after(const std::vector<std::string>& args, size_t i,
                                      FlagKind kind) {
  std::vector<std::string> values;
  const size_t limit = kind == kFlag ? 0 : kind == kValue ? 1 : args.size();
  for (++i; i < args.size() && values.size() < limit && !is_flag(args[i]); ++i) {
    values.push_back(args[i]);
  }
  return values;
}

std::string shown_fate(const ForeignFlag& flag) {
  switch (flag.fate) {
    case kSame:
      return "the same";
    case kAlias:
      return str("`--", flag.ours, "`");
    case kNoMeaning:
      return "no meaning";
    case kRefused:
      return "refused";
  }
  return "";
}

// As numbers where both are: 0.0 is 0.
bool same_value(const std::string& given, std::string_view harmless) {
  const std::string other(harmless);
  char* end = nullptr;
  char* other_end = nullptr;
  const double a = std::strtod(given.c_str(), &end);
  const double b = std::strtod(other.c_str(), &other_end);
  const bool numbers = !given.empty() && !other.empty() && *end == '\0' && *other_end == '\0';
  return numbers ? a == b : given == harmless;
}

}  // namespace

std::vector<std::string> translate_flags(const ForeignFlags& table,
                                         const std::vector<std::string>& args,
                                         std::vector<std::string>& notes) {
  std::vector<std::string> out;
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t equals = args[i].find('=');
    const ForeignFlag* flag =
        is_flag(args[i]) ? find(table, args[i].substr(2, equals - 2)) : nullptr;
    if (flag == nullptr || flag->fate == kSame) {
      out.push_back(args[i]);
      continue;
    }
    if (flag->fate == kAlias) {
      out.push_back(
          str("--", flag->ours, equals == std::string::npos ? "" : args[i].substr(equals)));
      continue;
    }
    std::vector<std::string> values = equals == std::string::npos
                                          ? values_after(args, i, flag->kind)
                                          : std::vector{args[i].substr(equals + 1)};
    i += equals == std::string::npos ? values.size() : 0;
    const std::string shown = str("--", flag->name, values.empty() ? "" : " " + values[0]);
    if (flag->fate == kNoMeaning) {
      notes.push_back(str(shown, " has no effect here: ", flag->sentence));
    } else if (values.empty() || !same_value(values[0], flag->harmless)) {
      throw UsageError(str(shown, " is not supported: ", flag->sentence),
                       str("docs/", table.page, " lists what became of every flag"));
    }
  }
  return out;
}

std::string flags_markdown(const ForeignFlags& table) {
  std::string out = str("| flag | ", table.program, "'s default | here | |\n|---|---|---|---|\n");
  for (const ForeignFlag& flag : table.flags) {
    out += str("| `--", flag.name, "` | ", flag.standard, " | ", shown_fate(flag), " | ",
               flag.sentence,
               flag.harmless.empty() ? "" : str(" (", flag.harmless, " is accepted)"), " |\n");
  }
  return out;
}

}  // namespace reknit
