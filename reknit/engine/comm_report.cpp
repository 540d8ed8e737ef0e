#include "reknit/engine/comm_report.h"

#include "reknit/base/format.h"
#include "reknit/engine/runtime.h"

#include <algorithm>
#include <numeric>

namespace reknit {
namespace {

/// Ranks that the table shows.
constexpr size_t kShown = 16;

std::string size_text(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  auto size = static_cast<double>(bytes);
  size_t unit = 0;
  while (size >= 1000 && unit + 1 < std::size(kUnits)) {
    size /= 1000;
    ++unit;
  }
  return format(unit == 0 ? "%.0f %s" : "%.2f %s", size, kUnits[unit]);
}

/// The share of the payload that passes through a rank's links, each way, in a group of `size`.
double bus_factor(CommKind kind, int size) {
  const double others = static_cast<double>(size - 1) / size;
  switch (kind) {
    case CommKind::kAllReduce:
      return 2 * others;
    case CommKind::kAllGather:
    case CommKind::kReduceScatter:
    case CommKind::kAllToAll:
      return others;
    case CommKind::kBroadcast:
      return size > 1 ? 1 : 0;
    default:
      return 0;
  }
}

}  // namespace

nlohmann::ordered_json comm_json(const CommCounts& counts) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  const auto add = [&](const char* name, const CommCounts::Entry& entry) {
    if (entry.count > 0) {
      json[name] = {{"count", entry.count}, {"bytes", entry.bytes}, {"across", entry.across}};
    }
  };
  add("all_gather", counts.all_gather);
  add("reduce_scatter", counts.reduce_scatter);
  add("all_reduce", counts.all_reduce);
  add("broadcast", counts.broadcast);
  add("all_to_all", counts.all_to_all);
  add("barrier", counts.barrier);
  return json;
}

RankWaiting& RankWaiting::operator+=(const RankWaiting& other) {
  waited += other.waited;
  last += other.last;
  late_by += other.late_by;
  return *this;
}

std::vector<RankWaiting> waiting_of_ranks(Communicator& world, const std::vector<CommTime>& times) {
  RankWaiting mine;
  for (const CommTime& time : times) {
    mine += {time.seconds - time.moving, time.came_last ? 1.0 : 0.0, time.late_by};
  }
  std::vector<double> numbers(3 * world.size(), 0.0);
  double* own = &numbers[3 * world.rank()];
  own[0] = mine.waited;
  own[1] = mine.last;
  own[2] = mine.late_by;
  numbers = reduce_over_ranks(world, numbers);
  std::vector<RankWaiting> all;
  for (size_t i = 0; i < numbers.size(); i += 3) {
    all.push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
  }
  return all;
}

void CommRow::add(const CommTime& time) {
  ++count;
  bytes += time.bytes;
  bus_bytes += static_cast<double>(time.bytes) * bus_factor(time.kind, time.group_size);
  seconds += time.seconds;
  moving += time.moving;
}

bool CommLog::takes(CommKind kind) const {
  return !only_ || std::find(only_->begin(), only_->end(), name_of(kind)) != only_->end();
}

void CommLog::add(const std::vector<CommTime>& times, const std::vector<RankWaiting>& waiting) {
  step_.clear();
  for (const CommTime& time : times) {
    if (takes(time.kind)) {
      rows_[{time.kind, time.bytes}].add(time);
      step_[time.kind].add(time);
    }
  }
  step_waiting_ = waiting;
  waiting_.resize(waiting.size());
  for (size_t rank = 0; rank < waiting.size(); ++rank) {
    waiting_[rank] += waiting[rank];
  }
}

void CommLog::extend(nlohmann::ordered_json& comm) const {
  for (const auto& [kind, row] : step_) {
    nlohmann::ordered_json& entry = comm[name_of(kind)];
    if (entry.is_null()) {
      entry = {{"count", row.count}, {"bytes", row.bytes}};
    }
    entry["seconds"] = row.seconds;
    entry["waiting_s"] = row.seconds - row.moving;
    entry["algbw"] = row.algorithm_bandwidth() / 1e9;
    entry["busbw"] = row.bus_bandwidth() / 1e9;
  }
}

nlohmann::ordered_json CommLog::straggler() const {
  const auto worst = std::max_element(
      step_waiting_.begin(), step_waiting_.end(),
      [](const RankWaiting& a, const RankWaiting& b) { return a.late_by < b.late_by; });
  if (worst == step_waiting_.end() || worst->last == 0) {
    return nullptr;
  }
  return {{"rank", worst - step_waiting_.begin()},
          {"last", static_cast<int64_t>(worst->last)},
          {"late_s", worst->late_by},
          {"waited_s", worst->waited}};
}

std::string CommLog::line(const CommTime& time, bool debug) {
  CommRow row;
  row.add(time);
  return format("comm: %-14s %10s  %9.3f ms, waiting %9.3f ms, algbw %8.3f GB/s, busbw %8.3f GB/s",
                name_of(time.kind), size_text(time.bytes).c_str(), 1e3 * row.seconds,
                1e3 * (row.seconds - row.moving), row.algorithm_bandwidth() / 1e9,
                row.bus_bandwidth() / 1e9) +
         (debug ? str("  (", time.group, " #", time.number, ")") : "");
}

std::string CommLog::table() const {
  std::string text =
      format("%-14s %10s %8s %11s %11s %11s %11s %11s\n", "operation", "message", "count",
             "total ms", "mean ms", "waiting ms", "algbw GB/s", "busbw GB/s");
  for (const auto& [key, row] : rows_) {
    text +=
        format("%-14s %10s %8lld %11.3f %11.4f %11.3f %11.3f %11.3f\n", name_of(key.first),
               size_text(key.second).c_str(), static_cast<long long>(row.count), 1e3 * row.seconds,
               1e3 * row.seconds / static_cast<double>(row.count), 1e3 * (row.seconds - row.moving),
               row.algorithm_bandwidth() / 1e9, row.bus_bandwidth() / 1e9);
  }
  std::vector<size_t> ranks(waiting_.size());
  std::iota(ranks.begin(), ranks.end(), size_t{0});
  const bool cut = ranks.size() > kShown;
  if (cut) {
    std::stable_sort(ranks.begin(), ranks.end(),
                     [&](size_t a, size_t b) { return waiting_[a].late_by > waiting_[b].late_by; });
    ranks.resize(kShown);
  }
  text += format("%-14s %11s %11s %11s%s", "rank", "waited ms", "came last", "late by ms",
                 cut ? "  (the latest ones)" : "");
  for (const size_t rank : ranks) {
    const RankWaiting& its = waiting_[rank];
    text += format("\n%-14zu %11.3f %11.0f %11.3f", rank, 1e3 * its.waited, its.last,
                   1e3 * its.late_by);
  }
  return text;
}

nlohmann::ordered_json CommLog::json() const {
  nlohmann::ordered_json operations = nlohmann::ordered_json::array();
  for (const auto& [key, row] : rows_) {
    operations.push_back({{"operation", name_of(key.first)},
                          {"message_bytes", key.second},
                          {"count", row.count},
                          {"seconds", row.seconds},
                          {"waiting_s", row.seconds - row.moving},
                          {"algbw", row.algorithm_bandwidth() / 1e9},
                          {"busbw", row.bus_bandwidth() / 1e9}});
  }
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const RankWaiting& its : waiting_) {
    ranks.push_back({{"waited_s", its.waited},
                     {"last", static_cast<int64_t>(its.last)},
                     {"late_s", its.late_by}});
  }
  return {{"operations", operations}, {"ranks", ranks}};
}

}  // namespace reknit
