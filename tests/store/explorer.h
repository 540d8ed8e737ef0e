// Executes a trace in the orders that its dependencies allow and looks for one that goes
// wrong. See docs/schedule_explorer.md.
#pragma once

#include "tests/store/explorer_trace.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace reknit::explorer {

/// What was found, and how many executions (or states) were looked at.
struct Result {
  std::optional<std::string> violation;
  int64_t explored = 0;
};

/// The trace must outlive it.
class Explorer {
 public:
  /// Throws StateError naming a node if nodes wait for each other in a circle.
  explicit Explorer(const Trace& trace);

  /// Pairs of operations that touch the same cell, one of them writing, with no order
  /// between them. Without such a pair all orders give the same contents.
  const std::vector<std::pair<int, int>>& races() const { return races_; }

  /// Every order, up to orders that cannot differ: an operation without an unordered
  /// conflicting partner is executed as soon as it can be, the others in all ways.
  /// Each race is first tried in both directions, which finds most violations at once.
  Result explore_reduced(int64_t max_states = 1'000'000) const;
  /// Every reachable state without that reduction; throws StateError beyond `max_states`.
  Result explore_all(int64_t max_states) const;
  Result explore_random(int64_t orders, uint64_t seed) const;

 private:
  struct State {
    std::vector<Content> memory;
    std::vector<int> missing;  ///< by node: predecessors not yet executed
    std::vector<int> enabled;
    uint64_t executed = 0;  ///< commutative hash of the executed nodes
    uint64_t key() const;
  };

  State initial() const;
  void find_races();
  bool execute(State& state, size_t place, std::string& violation) const;
  bool expects_hold(const State& state, const Node& node, std::string& violation) const;
  std::optional<std::string> run_with_edge(int first, int second) const;
  Result search(bool reduced, int64_t max_states) const;

  const Trace& trace_;
  std::vector<std::vector<int>> next_;        ///< successors
  std::vector<std::vector<bool>> reachable_;  ///< [a][b]: b comes after a
  std::vector<int> topological_;
  std::vector<std::pair<int, int>> races_;
  std::vector<bool> racing_;
};

}  // namespace reknit::explorer
