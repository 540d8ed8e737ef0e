#include "reknit/comm/topology.h"

#include "reknit/base/error.h"

namespace reknit {

std::vector<int> spread_over_nodes(int ranks, int nodes) {
  require<UsageError>(nodes >= 1 && ranks % nodes == 0, ranks, " ranks cannot be spread over ",
                      nodes, " equal nodes");
  std::vector<int> node(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    node[rank] = rank / (ranks / nodes);
  }
  return node;
}

CommCounts::Entry traffic_of(const Operation& operation, const std::vector<int>& nodes, int rank,
                             int size) {
  const auto is_near = [&](int other) { return nodes.empty() || nodes[other] == nodes[rank]; };
  CommCounts::Entry entry{.count = 1, .bytes = operation.payload_bytes()};
  if (operation.kind == CommKind::kBroadcast) {
    if (operation.root != rank) {
      (is_near(operation.root) ? entry.inside : entry.across) = entry.bytes;
    }
    return entry;
  }
  int64_t near = 0;
  for (int other = 0; other < size; ++other) {
    near += other != rank && is_near(other) ? 1 : 0;
  }
  const int64_t moved = operation.kind == CommKind::kAllReduce ? 2 * entry.bytes : entry.bytes;
  entry.inside = moved * near / size;
  entry.across = moved * (size - 1 - near) / size;
  return entry;
}

}  // namespace reknit
