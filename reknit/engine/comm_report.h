// What a step moved between ranks and how long that took, as people and programs read it.
#pragma once

#include "reknit/comm/recorder.h"

#include <nlohmann/json.hpp>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace reknit {

/// `comm` of metrics.jsonl: for each operation that took place `count`, `bytes` (payload)
/// and `across` (bytes received from other nodes).
nlohmann::ordered_json comm_json(const CommCounts& counts);

/// A rank's waiting. Seconds, operations.
struct RankWaiting {
  double waited = 0;   ///< for ranks that came later
  double last = 0;     ///< operations that it came last to
  double late_by = 0;  ///< seconds after the last but one, over those

  RankWaiting& operator+=(const RankWaiting& other);
};

/// Of every rank of the world, on every rank. Collective; blocks the host.
std::vector<RankWaiting> waiting_of_ranks(Communicator& world, const std::vector<CommTime>& times);

/// Operations of one kind and size.
struct CommRow {
  int64_t count = 0;
  int64_t bytes = 0;     ///< payload of all of them
  double bus_bytes = 0;  ///< what each rank's links had to carry
  double seconds = 0;    ///< of all of them
  double moving = 0;     ///< without waiting for ranks that came later

  void add(const CommTime& time);
  /// Bytes a second, both 0 where nothing moved; docs/communication.md has the formulas.
  double algorithm_bandwidth() const {
    return moving > 0 ? static_cast<double>(bytes) / moving : 0;
  }
  double bus_bandwidth() const { return moving > 0 ? bus_bytes / moving : 0; }
};

/// The communication log of one rank.
class CommLog {
 public:
  /// `only`: names of operations ("all_gather"); none: all.
  explicit CommLog(std::optional<std::vector<std::string>> only = {}) : only_(std::move(only)) {}

  /// A step's operations of this rank, and the waiting of all ranks.
  void add(const std::vector<CommTime>& times, const std::vector<RankWaiting>& waiting);

  /// Adds to comm_json's objects, of the last step, `seconds`, `waiting_s`, `algbw` and `busbw`
  /// (GB/s).
  void extend(nlohmann::ordered_json& comm) const;
  /// {"rank", "last", "late_s", "waited_s"} of the rank that cost the others most in the last
  /// step; null where nobody came last.
  nlohmann::ordered_json straggler() const;
  /// The rows and ranks of all steps: DeepSpeed's summary.
  std::string table() const;
  nlohmann::ordered_json json() const;
  /// A line of one operation; `debug`: with its group and number there.
  static std::string line(const CommTime& time, bool debug);
  bool takes(CommKind kind) const;

 private:
  std::optional<std::vector<std::string>> only_;
  std::map<std::pair<CommKind, int64_t>, CommRow> rows_;  ///< by kind and size
  std::map<CommKind, CommRow> step_;
  std::vector<RankWaiting> waiting_, step_waiting_;  ///< by rank
};

}  // namespace reknit
