// Another program's flags, and what becomes of each here: one table per program.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reknit {

enum class FlagKind { kFlag, kValue, kList };

enum class FlagFate {
  kSame,       ///< ours has this very name
  kAlias,      ///< another name of ours
  kNoMeaning,  ///< accepted; one line says why nothing happens
  kRefused,    ///< an error that names the replacement, unless the value is harmless
};

struct ForeignFlag {
  std::string_view name;  ///< without dashes, "-" for "_"
  FlagKind kind;
  std::string_view standard;  ///< its default there; empty: none
  FlagFate fate;
  std::string_view ours = {};  ///< kAlias: the name it stands for
  std::string_view sentence = {};
  std::string_view harmless = {};  ///< kRefused: the value that asks for nothing
};

/// The flags of one program; docs/`page` is printed from it.
struct ForeignFlags {
  std::string_view program;  ///< "DeepSpeed-Chat"
  std::string_view page;     ///< "deepspeed_chat_flags.md"
  std::span<const ForeignFlag> flags;
};

/// Rewrites arguments (flag names already with "-"): aliases become ours, flags without
/// meaning go, each with a line added to `notes`. Throws UsageError for refused ones.
std::vector<std::string> translate_flags(const ForeignFlags& table,
                                         const std::vector<std::string>& args,
                                         std::vector<std::string>& notes);

/// The table as the documentation shows it.
std::string flags_markdown(const ForeignFlags& table);

}  // namespace reknit
