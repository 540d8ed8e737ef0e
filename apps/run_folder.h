// The run folder of a training command: metrics, samples, summary, log.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdio>
#include <string>

namespace reknit {

/// Written by rank 0 alone. Lines are flushed as they come; files of an interrupted run
/// are continued. An empty path makes every call a no-op.
class RunFolder {
 public:
  /// Creates the folder (UsageError if that fails) and starts log.txt, which is locked until
  /// the end: UsageError if another run, on whatever machine, holds it.
  /// `overwrite` clears what an earlier run left: UsageError for any other content.
  RunFolder(std::string path, bool overwrite);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;

  bool exists() const { return !path_.empty(); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  /// Forgets lines of steps after `step`: the run goes on from a checkpoint of it.
  void resume_after(int64_t step);
  void metrics(const nlohmann::ordered_json& line);
  /// Whole lines of samples.jsonl.
  void samples(const std::string& lines);
  /// config.json or summary.json, whole.
  void write(const std::string& name, const std::string& text) const;

 private:
  void lock();
  void append(std::FILE*& file, const std::string& name, const std::string& lines);

  std::string path_;
  int lock_ = -1;
  std::FILE* metrics_ = nullptr;
  std::FILE* samples_ = nullptr;
};

}  // namespace reknit
