// A model for the explorer: it knows what every parameter and gradient must hold at every
// moment, tells the simulated device, and asks the store for it like a real model.
#pragma once

#include "tests/store/explorer_device.h"

#include "reknit/store/store.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace reknit::explorer {

struct Case {
  std::string name;
  int world = 2;
  Placement placement{3, 2};
  int depth = 1;
  std::vector<std::vector<int64_t>> groups{{40, 3}, {70}, {33}};  ///< sizes of parameters
  std::vector<GroupId> order = {};                                ///< empty: as added
  int64_t persistence_threshold = 0;
  int nodes = 1;
  bool overlap = true;
};

/// One rank's model while it is recorded.
class Model {
 public:
  Model(const Case& c, Recorder& recorder, int rank);

  void load();
  /// Other values, without a new version.
  void load_again();
  void forward(Phase phase = Phase::kForward);
  void backward();
  void step();
  void skip_step();
  /// `tokens` passes over the groups with the copies that are there (pinned or gathered).
  void generate(int tokens);
  void evaluate();
  void edit(GroupId group, int param, int owner);
  /// Other masters in, a look at them, and back again.
  void swap_twice();

  /// Nothing may be left of a pass: slots returned, groups sharded.
  void expect_nothing_left();
  /// Two leases of one group that overlap, with gathers of others meanwhile.
  void overlapping_leases();

  Store& store() { return *store_; }
  SlotPool& pool() { return *pool_; }
  int64_t gathers() const { return gather_->counts().all_gather.count; }
  void read(const Full& weights, GroupId group, const std::string& label);

 private:
  void load_version(int version);
  Content weight(GroupId group, int param, int64_t cell) const;
  Content contribution(int rank, GroupId group, int param, int64_t cell, int use) const;
  std::vector<Content> weights_of(GroupId group, int param, int64_t begin, int64_t count) const;
  int64_t cells_in(GroupId group, int param) const;
  void raise(GroupId group, int param);

  Case case_;
  Recorder& recorder_;
  int rank_;
  std::shared_ptr<Communicator> gather_;
  std::unique_ptr<SlotPool> pool_;
  std::unique_ptr<Store> store_;
  std::vector<GroupId> order_;
  std::vector<std::vector<int>> versions_;  ///< [group][param]: what the copy must be of
  std::map<const ParamSpec*, std::pair<GroupId, int>> places_;
  std::vector<std::vector<std::vector<Content>>> expected_;  ///< sums of gradients, by cell
  int micro_ = 0;
};

using Program = std::function<void(Model&)>;

/// Records `program` on every rank of the case and finishes the trace. Throws what the
/// store threw, or StateError for a violation that needs no particular order.
std::unique_ptr<Recorder> record(const Case& c, const Program& program);

}  // namespace reknit::explorer
