// What happened on each rank and when, as a file for trace viewers (Chrome, Perfetto).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace reknit {

/// Something that took a while, or an instant.
struct TraceSpan {
  const char* label = "";  ///< outlives the trace: a literal
  double begin = 0;        ///< seconds since 1970
  double seconds = -1;     ///< negative: an instant
  int64_t bytes = -1;      ///< left out where it is negative, as the number
  int64_t number = -1;     ///< of an operation in its group, of a version, of a step
};

/// The last `limit` spans of a rank, in rows. One thread.
class Trace {
 public:
  static constexpr size_t kLimit = 200'000;  ///< some 12 MB

  explicit Trace(int rank, size_t limit = kLimit) : rank_(rank), limit_(limit) {}

  /// The row of this name, new ones below the others.
  int row(const std::string& name);
  /// Spans of a row come in order. Where one would begin before the last has ended, it
  /// begins when that ends: a row is a queue.
  void add(int row, TraceSpan span);

  int rank() const { return rank_; }
  /// Spans that newer ones have driven out.
  int64_t dropped() const { return dropped_; }
  /// Events of the trace event format, as JSON, each followed by a comma and a new line.
  std::string events() const;

 private:
  struct Row {
    std::string name;
    double end = 0;  ///< of its last span
  };
  struct Placed {
    int row;
    TraceSpan span;
  };
  int rank_;
  size_t limit_;
  std::map<std::string, int> row_of_;
  std::vector<Row> rows_;
  std::vector<Placed> spans_;  ///< a ring once it is full
  size_t oldest_ = 0;
  int64_t dropped_ = 0;
};

/// The whole file: one process of the viewer for each rank.
std::string trace_json(const std::vector<const Trace*>& ranks);

}  // namespace reknit
