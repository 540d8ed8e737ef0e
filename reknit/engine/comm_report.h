// What a step moved between ranks, as the metrics lines say it.
#pragma once

#include "reknit/comm/communicator.h"

#include <nlohmann/json.hpp>

namespace reknit {

/// `comm` of metrics.jsonl: for each operation that took place `count`, `bytes` (payload)
/// and `across` (bytes received from other nodes).
nlohmann::ordered_json comm_json(const CommCounts& counts);

}  // namespace reknit
