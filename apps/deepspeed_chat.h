// DeepSpeed-Chat's flags of step 3, and what becomes of each here.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reknit {

enum class ChatKind { kFlag, kValue, kList };

enum class ChatFate {
  kSame,       ///< ours has this very name
  kAlias,      ///< another name of ours
  kNoMeaning,  ///< accepted; one line says why nothing happens
  kRefused,    ///< an error that names the replacement, unless the value is harmless
};

struct ChatFlag {
  std::string_view name;  ///< without dashes, "-" for "_"
  ChatKind kind;
  std::string_view standard;  ///< DeepSpeed-Chat's default; empty: none
  ChatFate fate;
  std::string_view ours = {};  ///< kAlias: the name it stands for
  std::string_view sentence = {};
  std::string_view harmless = {};  ///< kRefused: the value that asks for nothing
};

/// The one table; docs/deepspeed_chat_flags.md is printed from it.
std::span<const ChatFlag> deepspeed_chat_step3();

/// Rewrites arguments (flag names already with "-"): aliases become ours, flags without
/// meaning go, each with a line added to `notes`. Throws UsageError for refused ones.
std::vector<std::string> translate_deepspeed_chat(const std::vector<std::string>& args,
                                                  std::vector<std::string>& notes);

/// The table as the documentation shows it.
std::string deepspeed_chat_markdown();

}  // namespace reknit
