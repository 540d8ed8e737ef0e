#include "tests/store/explorer.h"

#include "reknit/base/error.h"

#include <algorithm>
#include <random>
#include <unordered_set>

namespace reknit::explorer {
namespace {

struct Access {
  int node;
  bool write;
};

bool is_after(const std::vector<std::vector<bool>>& reachable, int a, int b) {
  return reachable[a][b];
}

}  // namespace

uint64_t Explorer::State::key() const {
  uint64_t hash = executed;
  for (const Content content : memory) {
    hash = (hash ^ content) * 0x100000001B3ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

Explorer::Explorer(const Trace& trace) : trace_(trace) {
  const auto& nodes = trace.nodes();
  const size_t count = nodes.size();
  next_.resize(count);
  std::vector<int> missing(count);
  for (size_t n = 0; n < count; ++n) {
    for (const int before : nodes[n].after) {
      next_[before].push_back(static_cast<int>(n));
      ++missing[n];
    }
  }
  for (size_t n = 0; n < count; ++n) {
    if (missing[n] == 0) {
      topological_.push_back(static_cast<int>(n));
    }
  }
  for (size_t i = 0; i < topological_.size(); ++i) {
    for (const int after : next_[topological_[i]]) {
      if (--missing[after] == 0) {
        topological_.push_back(after);
      }
    }
  }
  for (size_t n = 0; n < count; ++n) {
    require<StateError>(missing[n] == 0, "nobody goes on: ", nodes[n].label, " of rank ",
                        nodes[n].rank, " waits in a circle");
  }
  reachable_.assign(count, std::vector<bool>(count, false));
  for (auto n = topological_.rbegin(); n != topological_.rend(); ++n) {
    for (const int after : next_[*n]) {
      reachable_[*n][after] = true;
      for (size_t m = 0; m < count; ++m) {
        if (reachable_[after][m]) {
          reachable_[*n][m] = true;
        }
      }
    }
  }
  find_races();
}

void Explorer::find_races() {
  std::vector<std::vector<Access>> accesses(trace_.num_cells());
  const auto note = [&](Cells cells, int node, bool write) {
    for (int64_t cell = cells.begin; cell < cells.end; ++cell) {
      auto& list = accesses[cell];
      if (!list.empty() && list.back().node == node) {
        list.back().write |= write;
      } else {
        list.push_back({node, write});
      }
    }
  };
  for (size_t n = 0; n < trace_.nodes().size(); ++n) {
    const Node& node = trace_.nodes()[n];
    for (const Expect& expect : node.expects) {
      note(expect.cells, static_cast<int>(n), false);
    }
    for (const Assign& assign : node.assigns) {
      for (const Cells& source : assign.sum_of) {
        note(source, static_cast<int>(n), false);
      }
      note(assign.to, static_cast<int>(n), true);
    }
  }
  racing_.assign(trace_.nodes().size(), false);
  for (const auto& list : accesses) {
    for (size_t i = 0; i < list.size(); ++i) {
      for (size_t j = i + 1; j < list.size(); ++j) {
        const int a = list[i].node;
        const int b = list[j].node;
        if ((list[i].write || list[j].write) && a != b && !is_after(reachable_, a, b) &&
            !is_after(reachable_, b, a)) {
          races_.emplace_back(std::min(a, b), std::max(a, b));
          racing_[a] = racing_[b] = true;
        }
      }
    }
  }
  std::sort(races_.begin(), races_.end());
  races_.erase(std::unique(races_.begin(), races_.end()), races_.end());
}

Explorer::State Explorer::initial() const {
  State state;
  state.memory.assign(trace_.num_cells(), poison());
  for (size_t n = 0; n < trace_.nodes().size(); ++n) {
    state.missing.push_back(static_cast<int>(trace_.nodes()[n].after.size()));
    if (state.missing.back() == 0) {
      state.enabled.push_back(static_cast<int>(n));
    }
  }
  return state;
}

bool Explorer::expects_hold(const State& state, const Node& node, std::string& violation) const {
  for (const Expect& expect : node.expects) {
    for (int64_t i = 0; i < expect.cells.size(); ++i) {
      const Content found = state.memory[expect.cells.begin + i];
      if (found != expect.values[i]) {
        violation = str("rank ", node.rank, ", ", node.label, ", cell ", i, ": expected ",
                        trace_.name_of(expect.values[i]), ", found ", trace_.name_of(found));
        return false;
      }
    }
  }
  return true;
}

// Executes the node at `place` of the enabled ones.
bool Explorer::execute(State& state, size_t place, std::string& violation) const {
  const int id = state.enabled[place];
  state.enabled[place] = state.enabled.back();
  state.enabled.pop_back();
  const Node& node = trace_.nodes()[id];
  if (!expects_hold(state, node, violation)) {
    return false;
  }
  thread_local std::vector<Content> results;
  results.clear();
  for (const Assign& assign : node.assigns) {
    for (int64_t i = 0; i < assign.to.size(); ++i) {
      Content sum = assign.plus.empty()       ? 0
                    : assign.plus.size() == 1 ? assign.plus[0]
                                              : assign.plus[i];
      for (const Cells& source : assign.sum_of) {
        sum += state.memory[source.begin + i];
      }
      results.push_back(sum);
    }
  }
  size_t taken = 0;
  for (const Assign& assign : node.assigns) {
    for (int64_t cell = assign.to.begin; cell < assign.to.end; ++cell) {
      state.memory[cell] = results[taken++];
    }
  }
  state.executed += content_of({static_cast<uint64_t>(id), 77});
  for (const int after : next_[id]) {
    if (--state.missing[after] == 0) {
      state.enabled.push_back(after);
    }
  }
  return true;
}

// One order in which `first` comes before `second`, everything else as early as it can.
std::optional<std::string> Explorer::run_with_edge(int first, int second) const {
  State state = initial();
  std::string violation;
  bool held = true;  // `second`, until `first` has been executed
  while (!state.enabled.empty()) {
    size_t place = 0;
    while (held && place < state.enabled.size() && state.enabled[place] == second) {
      ++place;
    }
    // What `first` needs goes first, so that `second` has not been overtaken by its own past.
    for (size_t i = 0; held && i < state.enabled.size(); ++i) {
      const int id = state.enabled[i];
      if (id == first || reachable_[id][first]) {
        place = i;
        break;
      }
    }
    held = held && state.enabled[place] != first;
    if (!execute(state, place, violation)) {
      return str(violation, "; in an order with \"", trace_.nodes()[first].label, "\" of rank ",
                 trace_.nodes()[first].rank, " before \"", trace_.nodes()[second].label,
                 "\" of rank ", trace_.nodes()[second].rank);
    }
  }
  return std::nullopt;
}

Result Explorer::search(bool reduced, int64_t max_states) const {
  Result result;
  std::unordered_set<uint64_t> seen;
  std::vector<State> stack{initial()};
  std::string violation;
  while (!stack.empty()) {
    State state = std::move(stack.back());
    stack.pop_back();
    bool alone = true;
    while (reduced && alone) {
      alone = false;
      for (size_t i = 0; i < state.enabled.size(); ++i) {
        if (!racing_[state.enabled[i]]) {
          if (!execute(state, i, violation)) {
            return {violation, result.explored};
          }
          alone = true;
          break;
        }
      }
    }
    if (!seen.insert(state.key()).second) {
      continue;
    }
    require<StateError>(++result.explored <= max_states, "more than ", max_states,
                        " states: use a smaller case");
    for (size_t i = 0; i < state.enabled.size(); ++i) {
      State next = state;
      if (!execute(next, i, violation)) {
        return {violation, result.explored};
      }
      stack.push_back(std::move(next));
    }
  }
  return result;
}

Result Explorer::explore_reduced(int64_t max_states) const {
  for (const auto& [a, b] : races_) {
    for (const auto& violation : {run_with_edge(a, b), run_with_edge(b, a)}) {
      if (violation) {
        return {violation, 1};
      }
    }
  }
  return search(true, max_states);
}

Result Explorer::explore_all(int64_t max_states) const {
  return search(false, max_states);
}

// Each order gives every node a random rank of importance or, every second time, takes
// any enabled node: the first kind lets one stream run far ahead of the others.
Result Explorer::explore_random(int64_t orders, uint64_t seed) const {
  std::mt19937_64 random(seed);
  const State start = initial();
  Result result;
  std::string violation;
  std::vector<uint64_t> importance(trace_.nodes().size());
  for (int64_t order = 0; order < orders; ++order) {
    State state = start;
    const bool by_importance = order % 2 == 0;
    if (by_importance) {
      std::generate(importance.begin(), importance.end(), std::ref(random));
    }
    while (!state.enabled.empty()) {
      size_t place = 0;
      if (by_importance) {
        place = std::max_element(state.enabled.begin(), state.enabled.end(),
                                 [&](int a, int b) { return importance[a] < importance[b]; }) -
                state.enabled.begin();
      } else {
        place = random() % state.enabled.size();
      }
      if (!execute(state, place, violation)) {
        return {str(violation, "; in random order ", order, " of seed ", seed), order + 1};
      }
    }
    ++result.explored;
  }
  return result;
}

}  // namespace reknit::explorer
