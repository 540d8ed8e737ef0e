#include "apps/report_error.h"

#include "reknit/engine/runtime.h"

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <new>
#include <string_view>

namespace reknit {
namespace {

void write_launcher_file(const std::string& message) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') {
    return;
  }
  const std::string now = std::to_string(std::time(nullptr));
  const nlohmann::json content = {
      {"message",
       {{"message", message}, {"extraInfo", {{"py_callstack", ""}, {"timestamp", now}}}}}};
  std::ofstream(path) << content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A name from a file may hold anything: what would end the line or steer a terminal is shown.
std::string printable(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) || c == '\n' || c == '\t') {
      shown += c;
    } else {
      char code[8];
      std::snprintf(code, sizeof(code), "\\x%02x", static_cast<unsigned char>(c));
      shown += code;
    }
  }
  return shown;
}

int report(const std::string& given, const std::string& help, ExitCode code) {
  const std::string sentence = printable(given);
  std::fprintf(stderr, "error: %s\n", sentence.c_str());
  if (!help.empty()) {
    std::fprintf(stderr, "help: %s\n", printable(help).c_str());
  }
  std::fflush(stderr);
  write_launcher_file(sentence);
  return static_cast<int>(code);
}

constexpr const char* kHostMemoryHelp =
    "use a smaller model, batch or length, or fewer ranks on this host";
constexpr const char* kBugHelp =
    "this is a bug of ours; please report this message, the command line, and what `reknit env` "
    "prints";

// For a sentence that has no help of its own.
const char* help_for(ExitCode code) {
  switch (code) {
    case ExitCode::kUsage:
      return "reknit COMMAND --help says what each flag takes; docs/errors.md has the sentences";
    case ExitCode::kInput:
      return "look at the file that is named; docs/errors.md has the sentences";
    case ExitCode::kRank:
      return "look at the named rank's machine and start again (--resume auto goes on from a "
             "checkpoint); docs/errors.md has the sentences";
    case ExitCode::kNumbers:
      return "lower the learning rate, or look at the data of this step";
    default:
      return kBugHelp;
  }
}

/// What libtorch's allocator of host memory says, as a sentence; empty for other errors.
std::string host_memory_sentence(const c10::Error& error) {
  const std::string_view text = error.what_without_backtrace();
  if (text.find("DefaultCPUAllocator: ") == std::string_view::npos) {
    return "";
  }
  constexpr std::string_view kTried = "tried to allocate ";
  const size_t begin = text.find(kTried);
  if (begin == std::string_view::npos) {
    return "out of memory: the host refused an allocation";
  }
  const std::string_view bytes = text.substr(begin + kTried.size());
  return "out of memory: the host refused an allocation of " +
         std::string(bytes.substr(0, bytes.find_first_not_of("0123456789"))) + " bytes";
}

// For what libtorch says of devices that have failed; null for the rest.
const char* help_for_device(const c10::Error& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    return "use a smaller model, batch or length, or more ranks to shard over";
  }
  if (dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr) {
    return "look at the device (nvidia-smi, dmesg) and start again; --resume auto goes on from a "
           "checkpoint";
  }
  return nullptr;
}

}  // namespace

int report_error(const std::exception& error) noexcept {
  try {
    const auto* ours = dynamic_cast<const Error*>(&error);
    if (dynamic_cast<const SaidError*>(&error) != nullptr) {
      return static_cast<int>(ours->code());
    }
    if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
      return report("out of memory: the host refused an allocation", kHostMemoryHelp,
                    ExitCode::kRank);
    }
    if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) {
      if (const std::string sentence = host_memory_sentence(*torch); !sentence.empty()) {
        return report(sentence, kHostMemoryHelp, ExitCode::kRank);
      }
      if (const char* help = help_for_device(*torch)) {
        return report(torch->what_without_backtrace(), help, ExitCode::kRank);
      }
      return report(torch->what_without_backtrace(), kBugHelp, ExitCode::kBug);
    }
    if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
      return report(str(file->path1().string(), ": ", file->code().message()),
                    "check the path, and who may use it", ExitCode::kInput);
    }
    if (ours == nullptr) {
      return report(error.what(), kBugHelp, ExitCode::kBug);
    }
    return report(ours->what(), ours->help().empty() ? help_for(ours->code()) : ours->help(),
                  ours->code());
  } catch (...) {
    return static_cast<int>(ExitCode::kBug);
  }
}

}  // namespace reknit
