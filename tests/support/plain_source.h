// A ParamSource that holds whole tensors: no ranks, no shards, but every rule of the
// leases. For tests of code that reads parameters.
#pragma once

#include "reknit/store/param_ref.h"

#include <memory>
#include <string>
#include <vector>

namespace reknit {

/// Values start as zeros. Checks, by throwing StateError: no read outside a lease, no
/// second gradient lease on a group, no reduce of gradients that are not open.
class PlainSource : public ParamSource {
 public:
  PlainSource(std::vector<GroupSpec> groups, at::ScalarType dtype, c10::Device device);
  ~PlainSource() override;
  PlainSource(const PlainSource&) = delete;

  Full full(GroupId group, Phase phase) override;
  Gradients gradients(GroupId group) override;
  void reduce(Gradients&& gradients, bool last = true) override;

  /// Row-wise writable value, outside of any lease.
  at::Tensor value(GroupId group, int param) const { return values_.at(group).at(param); }
  /// The gradient of the last pass in which the group was reduced; undefined if frozen.
  at::Tensor gradient(GroupId group, int param) const { return grads_.at(group).at(param); }
  const std::vector<GroupSpec>& groups() const { return groups_; }

  /// What was asked for, in order.
  struct Use {
    GroupId group;
    Phase phase;
    bool operator==(const Use&) const = default;
  };
  std::vector<Use> opened;       ///< full()
  std::vector<GroupId> reduced;  ///< reduce() with last
  int max_leases = 0;            ///< most Full alive at once
  int dropped_gradients = 0;     ///< Gradients that never reached reduce()

 private:
  class Leases;

  std::vector<GroupSpec> groups_;
  std::vector<std::vector<at::Tensor>> values_;
  std::vector<std::vector<at::Tensor>> grads_;
  std::vector<bool> accumulating_;  ///< between the first gradients() and the last reduce()
  std::shared_ptr<Leases> leases_;
};

}  // namespace reknit
