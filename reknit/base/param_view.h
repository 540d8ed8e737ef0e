// The read side of a parameter: a tensor that checks, at every use, that it holds
// its value.
#pragma once

#include "reknit/base/error.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace reknit {

/// What a view asks before it gives out its tensor. Implemented by the store.
class ReadGuard {
 public:
  virtual ~ReadGuard() = default;
  /// Throws StateError{parameter, state, version, phase, rank} unless the group is
  /// Full, of `version`, and still leased to the reader `lease`.
  virtual void require_readable(const std::string& parameter, uint64_t version,
                                uint64_t lease) const = 0;
};

/// A parameter inside a Full group. Cheap to copy; a copy that outlives the lease
/// it came from throws at its next read. Not for use across threads.
class ParamView {
 public:
  ParamView() = default;
  ParamView(const std::string* name, at::Tensor tensor, std::shared_ptr<const ReadGuard> guard,
            uint64_t version, uint64_t lease)
      : name_(name),
        tensor_(std::move(tensor)),
        guard_(std::move(guard)),
        version_(version),
        lease_(lease) {}

  /// False for a parameter that the model does not have (a bias that is absent).
  bool present() const { return tensor_.defined(); }

  /// The value. For ops only: nobody else keeps the tensor. Throws StateError.
  const at::Tensor& read() const {
    REKNIT_INVARIANT(guard_ != nullptr, "a parameter that the model does not have was read");
    guard_->require_readable(*name_, version_, lease_);
    return tensor_;
  }

  /// Shape and name are always known, whatever the state.
  at::IntArrayRef shape() const { return tensor_.sizes(); }
  const std::string& name() const { return *name_; }

 private:
  const std::string* name_ = nullptr;
  at::Tensor tensor_;
  std::shared_ptr<const ReadGuard> guard_;
  uint64_t version_ = 0;
  uint64_t lease_ = 0;
};

}  // namespace reknit
