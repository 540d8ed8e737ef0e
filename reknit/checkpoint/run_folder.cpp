#include "reknit/checkpoint/run_folder.h"

#include "reknit/base/atomic_file.h"
#include "reknit/base/error.h"
#include "reknit/base/json_problem.h"
#include "reknit/base/log.h"
#include "reknit/base/mapped_file.h"
#include "reknit/checkpoint/checksum.h"
#include "reknit/checkpoint/json_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

namespace reknit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifestName = "complete.json";
constexpr const char* kStepPrefix = "step-";
constexpr const char* kAsideMark = ".partial-";

struct SavedFolder {
  std::string path;
  Manifest manifest;
};

nlohmann::json to_json(const FileRecord& record) {
  return {{"bytes", record.bytes}, {"checksum", checksum_text(record.checksum)}};
}

FileRecord record_from(const nlohmann::json& json) {
  const auto text = json.at("checksum").get<std::string>();
  FileRecord record{json.at("bytes").get<int64_t>(), 0};
  const char* end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, record.checksum, 16);
  require<InputError>(error == std::errc() && read == end && text.size() == 16, text,
                      " is no checksum");
  return record;
}

bool is_step_name(const std::string& name) {
  const std::string prefix = kStepPrefix;
  return name.size() > prefix.size() && name.starts_with(prefix) &&
         std::all_of(name.begin() + static_cast<int64_t>(prefix.size()), name.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::vector<std::string> list_folders(const std::string& out_dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(out_dir, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->is_directory(error)) {
      names.push_back(entry->path().filename().string());
    }
  }
  require<InputError>(!error || error == std::errc::no_such_file_or_directory, "cannot read ",
                      out_dir, ": ", error.message());
  std::sort(names.begin(), names.end());
  return names;
}

// Step folders with a readable manifest, the last saved first; `on_damaged` hears of the
// others.
template <class OnDamaged>
std::vector<SavedFolder> saved_folders(const std::string& out_dir, OnDamaged on_damaged) {
  std::vector<SavedFolder> found;
  for (const std::string& name : list_folders(out_dir)) {
    if (!is_step_name(name)) {
      continue;
    }
    const std::string path = (fs::path(out_dir) / name).string();
    try {
      found.push_back({path, read_manifest(path)});
    } catch (const InputError& error) {
      on_damaged(path, error);
    }
  }
  std::sort(found.begin(), found.end(), [](const SavedFolder& a, const SavedFolder& b) {
    return a.manifest.serial > b.manifest.serial;
  });
  return found;
}

void ignore_damaged(const std::string& /*path*/, const InputError& /*error*/) {}

bool sizes_match(const SavedFolder& folder) {
  return std::all_of(folder.manifest.files.begin(), folder.manifest.files.end(),
                     [&](const auto& item) {
                       std::error_code error;
                       const auto bytes = fs::file_size(fs::path(folder.path) / item.first, error);
                       return !error && static_cast<int64_t>(bytes) == item.second.bytes;
                     });
}

void remove_folder(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    log_warning("cannot remove the old folder ", path, ": ", error.message());
  }
}

}  // namespace

FileRecord record_file(const std::string& path) {
  const auto file = MappedFile::open(path);
  return {static_cast<int64_t>(file->bytes().size()), checksum(file->bytes())};
}

void write_manifest(const std::string& folder, const Manifest& manifest) {
  nlohmann::json json{{"serial", manifest.serial}, {"files", nlohmann::json::object()}};
  for (const auto& [name, record] : manifest.files) {
    json["files"][name] = to_json(record);
  }
  // Over the rest of the object, so that a damaged manifest is known as such.
  json["checksum"] = checksum_text(checksum(json.dump()));
  write_file((fs::path(folder) / kManifestName).string(), json.dump(1) + "\n");
}

bool has_manifest(const std::string& folder) {
  std::error_code none;
  return fs::exists(fs::path(folder) / kManifestName, none);
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = (fs::path(folder) / kManifestName).string();
  nlohmann::json json = read_json_object(path);
  try {
    const auto sum = json.at("checksum").get<std::string>();
    json.erase("checksum");
    require<InputError>(checksum_text(checksum(json.dump())) == sum, path,
                        " is damaged: its checksum differs");
    Manifest manifest{json.at("serial").get<int64_t>(), {}};
    for (const auto& [name, record] : json.at("files").items()) {
      manifest.files[name] = record_from(record);
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw InputError(str(path, " is damaged: ", json_problem(error)));
  }
}

void verify_file(const std::string& folder, const std::string& name, const FileRecord& record) {
  const std::string path = (fs::path(folder) / name).string();
  const FileRecord found = record_file(path);
  require<InputError>(found.bytes == record.bytes, path, " has ", found.bytes,
                      " bytes where the checkpoint's ", kManifestName, " says ", record.bytes);
  require<InputError>(found.checksum == record.checksum, path, " is damaged: its checksum is ",
                      checksum_text(found.checksum), " where ", kManifestName, " says ",
                      checksum_text(record.checksum));
}

std::string step_folder_name(int64_t step) {
  std::string digits = std::to_string(step);
  digits.insert(0, digits.size() < 6 ? 6 - digits.size() : 0, '0');
  return kStepPrefix + digits;
}

std::optional<std::string> find_newest_whole(const std::string& out_dir) {
  int64_t damaged = 0;
  const auto skip = [&](const std::string& path, const InputError& error) {
    ++damaged;
    log_warning("checkpoint ", path, " is not whole and is skipped: ", error.what());
  };
  for (const SavedFolder& folder : saved_folders(out_dir, skip)) {
    try {
      for (const auto& [name, record] : folder.manifest.files) {
        verify_file(folder.path, name, record);
      }
      return folder.path;
    } catch (const InputError& error) {
      skip(folder.path, error);
    }
  }
  if (damaged > 0) {
    throw InputError(str("none of the ", damaged, " checkpoints in ", out_dir, " is whole"),
                     "bring back their files; --overwrite or another --out starts again");
  }
  return std::nullopt;
}

int64_t next_serial(const std::string& out_dir) {
  const auto folders = saved_folders(out_dir, ignore_damaged);
  return folders.empty() ? 1 : folders.front().manifest.serial + 1;
}

void remove_unfinished(const std::string& out_dir) {
  for (const std::string& name : list_folders(out_dir)) {
    const size_t mark = name.find(kAsideMark);
    if (mark != std::string::npos && is_step_name(name.substr(0, mark))) {
      remove_folder((fs::path(out_dir) / name).string());
    }
  }
}

void remove_older(const std::string& out_dir, int keep) {
  int kept = 0;
  for (const SavedFolder& folder : saved_folders(out_dir, ignore_damaged)) {
    if (sizes_match(folder) && ++kept > keep) {
      // Under a name of its own first: a removal that is cut short leaves no checkpoint.
      const std::string aside = folder.path + kAsideMark + "removed";
      std::error_code error;
      fs::rename(folder.path, aside, error);
      remove_folder(error ? folder.path : aside);
    }
  }
}

nlohmann::json fingerprint_folder(const std::string& path) {
  require<InputError>(fs::is_directory(path), path, " is no folder");
  nlohmann::json files = nlohmann::json::object();
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string extension = entry.path().extension().string();
    if (entry.is_regular_file() && (extension == ".safetensors" || extension == ".bin" ||
                                    extension == ".json" || extension == ".txt")) {
      files[entry.path().filename().string()] = to_json(record_file(entry.path().string()));
    }
  }
  return files;
}

void require_fingerprint(const nlohmann::json& recorded, const std::string& path,
                         const std::string& role) {
  const nlohmann::json found = fingerprint_folder(path);
  for (const auto& [name, record] : recorded.items()) {
    require<InputError>(found.contains(name), "the ", role, " ", path, " has no ", name,
                        ", which it had when the run began");
    require<InputError>(found.at(name) == record, "the ", role, " ", path,
                        " is not the one that the run began with: ", name, " differs");
  }
}

}  // namespace reknit
