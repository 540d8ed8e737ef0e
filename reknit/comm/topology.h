// Ranks and nodes: who sits where, and which bytes cross between nodes.
#pragma once

#include "reknit/comm/operation.h"

#include <vector>

namespace reknit {

/// The node of each of `ranks` ranks: `nodes` consecutive runs of equal length. UsageError
/// unless they come out even.
std::vector<int> spread_over_nodes(int ranks, int nodes);

/// One operation as rank `rank` of `size` counts it; `nodes` as in CommOptions. Every piece
/// is taken to go straight from the rank that has it to the rank that needs it, whichever
/// way a ring or a tree takes; n ranks, B bytes of payload, received by each rank:
///
///   all_gather, reduce_scatter, all_to_all   (n - 1) / n * B
///   all_reduce                               2 (n - 1) / n * B
///   broadcast                                B; the root nothing
CommCounts::Entry traffic_of(const Operation& operation, const std::vector<int>& nodes, int rank,
                             int size);

}  // namespace reknit
