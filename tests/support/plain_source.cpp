#include "tests/support/plain_source.h"

#include <algorithm>
#include <set>

namespace reknit {

/// Which leases are alive.
class PlainSource::Leases : public LeaseOwner, public ReadGuard {
 public:
  explicit Leases(PlainSource& source) : source_(source) {}

  uint64_t open() {
    alive_.insert(++last_);
    source_.max_leases = std::max<int>(source_.max_leases, alive_.size());
    return last_;
  }
  void release_full(GroupId /*group*/, uint64_t lease) noexcept override { alive_.erase(lease); }
  void drop_gradients(GroupId group) noexcept override {
    ++source_.dropped_gradients;
    held_.erase(group);
  }
  void require_readable(const std::string& parameter, uint64_t /*version*/,
                        uint64_t lease) const override {
    require<StateError>(alive_.contains(lease), parameter, " was read after its lease");
  }

  std::set<GroupId> held_;  ///< groups whose Gradients somebody holds

 private:
  PlainSource& source_;
  uint64_t last_ = 0;
  std::set<uint64_t> alive_;
};

PlainSource::PlainSource(std::vector<GroupSpec> groups, at::ScalarType dtype, c10::Device device)
    : groups_(std::move(groups)),
      accumulating_(groups_.size(), false),
      leases_(std::make_shared<Leases>(*this)) {
  for (const GroupSpec& group : groups_) {
    std::vector<at::Tensor>& values = values_.emplace_back();
    for (const ParamSpec& param : group.params) {
      values.push_back(
          at::zeros(param.shape, at::dtype(param.dtype.value_or(dtype)).device(device)));
    }
    grads_.emplace_back(values.size());
  }
}

PlainSource::~PlainSource() = default;

Full PlainSource::full(GroupId group, Phase phase) {
  opened.push_back({group, phase});
  const uint64_t lease = leases_->open();
  std::vector<ParamView> views;
  for (size_t i = 0; i < values_.at(group).size(); ++i) {
    views.emplace_back(&groups_[group].params[i].name, values_[group][i], leases_, 0, lease);
  }
  return Full(leases_.get(), group, lease, std::move(views));
}

Gradients PlainSource::gradients(GroupId group) {
  require<StateError>(leases_->held_.insert(group).second, "gradients of ", groups_.at(group).name,
                      " are already open");
  if (!accumulating_.at(group)) {
    for (size_t i = 0; i < grads_[group].size(); ++i) {
      const bool trainable = groups_[group].params[i].trainable;
      grads_[group][i] = trainable ? at::zeros_like(values_[group][i]) : at::Tensor();
    }
    accumulating_[group] = true;
  }
  return Gradients(leases_.get(), group, grads_[group]);
}

void PlainSource::reduce(Gradients&& gradients, bool last) {
  const GroupId group = gradients.group();
  require<StateError>(leases_->held_.erase(group) == 1, "gradients of ", groups_.at(group).name,
                      " are not open");
  gradients.close();
  if (last) {
    accumulating_[group] = false;
    reduced.push_back(group);
  }
}

}  // namespace reknit
