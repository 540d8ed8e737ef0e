#include "reknit/engine/comm_report.h"

namespace reknit {

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

}  // namespace reknit
