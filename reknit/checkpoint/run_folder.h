// The folders of a run's checkpoints: which are whole, which is the newest, which go.
//
//   OUT/step-000012/complete.json   bytes and checksum of every other file, written last
//                  /state.json      see engine/run_state.h
//                  /MODEL.00000.safetensors ...   see checkpoint/shards.h
//
// complete.json also numbers the saves of a run: the newest checkpoint is the one saved
// last, which is not the one of the highest step where a run went back to an older one.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace reknit {

/// What a file must be.
struct FileRecord {
  int64_t bytes = 0;
  uint64_t checksum = 0;
  bool operator==(const FileRecord&) const = default;
};

/// Reads the whole file. Throws InputError.
FileRecord record_file(const std::string& path);

struct Manifest {
  int64_t serial = 0;  ///< of the save, from 1
  std::map<std::string, FileRecord> files;
};

/// Writes complete.json into `folder`. Throws UsageError or WriteError, see write_file.
void write_manifest(const std::string& folder, const Manifest& manifest);
/// True where `folder` has a complete.json, whole or not.
bool has_manifest(const std::string& folder);
/// Throws InputError if complete.json is missing or damaged.
Manifest read_manifest(const std::string& folder);
/// Throws InputError naming the file if it is missing, or of another size or content.
void verify_file(const std::string& folder, const std::string& name, const FileRecord& record);

/// "step-000012".
std::string step_folder_name(int64_t step);

/// The path of the last saved checkpoint of `out_dir` whose files are all whole. Reads
/// them. A line of the log names every newer one that is not whole, and why. Nothing where
/// nothing was saved; throws InputError where checkpoints stand and none is whole.
std::optional<std::string> find_newest_whole(const std::string& out_dir);

/// One more than the highest number of a save in `out_dir`.
int64_t next_serial(const std::string& out_dir);

/// Removes what stands in `out_dir` from saves that never ended.
void remove_unfinished(const std::string& out_dir);

/// Removes all but the `keep` last saved checkpoints. Those without a readable
/// complete.json, or with files missing or of another size, neither count nor go.
void remove_older(const std::string& out_dir, int keep);

/// Name, bytes and checksum of the files that make a model's folder (weights, their
/// index, configuration, tokenizer). Reads them whole. Throws InputError.
nlohmann::json fingerprint_folder(const std::string& path);

/// Throws InputError naming the first file of `path` that is not what `recorded` says;
/// `role` stands in the sentence ("reference").
void require_fingerprint(const nlohmann::json& recorded, const std::string& path,
                         const std::string& role);

}  // namespace reknit
