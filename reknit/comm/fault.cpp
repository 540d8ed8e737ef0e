#include "reknit/comm/fault.h"

#include "reknit/base/error.h"

#include <thread>

namespace reknit {
namespace {

using Clock = std::chrono::steady_clock;

/// The inner operation with a late, possibly corrupted result.
class FaultWork : public Work {
 public:
  FaultWork(std::unique_ptr<Work> inner, std::vector<at::Tensor> written, Fault fault)
      : inner_(std::move(inner)), written_(std::move(written)), fault_(std::move(fault)) {
    (void)ready();
  }

  void wait(const Stream& stream) override {
    inner_->wait(stream);
    std::this_thread::sleep_until(visible_since());
    if (fault_.corrupt) {
      const StreamScope scope(stream);
      for (at::Tensor& tensor : written_) {
        fault_.corrupt(tensor);
      }
    }
  }

  bool ready() const noexcept override {
    return inner_->ready() && Clock::now() >= visible_since();
  }

  void abandon() noexcept override { inner_->abandon(); }

 private:
  /// When the result may be seen; the clock starts when completion is first noticed.
  Clock::time_point visible_since() const {
    if (!visible_) {
      visible_ = Clock::now() + fault_.delay_result;
    }
    return *visible_;
  }

  std::unique_ptr<Work> inner_;
  std::vector<at::Tensor> written_;
  Fault fault_;
  mutable std::optional<Clock::time_point> visible_;
};

/// An operation that this rank does not take part in.
class AbsentWork : public Work {
 public:
  AbsentWork(Communicator& group, std::string sentence)
      : group_(group), sentence_(std::move(sentence)) {}

  void wait(const Stream&) override {
    std::this_thread::sleep_for(group_.options().timeout);
    group_.abort(sentence_);
    throw CommError(sentence_);
  }
  bool ready() const noexcept override { return false; }
  void abandon() noexcept override { group_.abort(sentence_); }

 private:
  Communicator& group_;
  std::string sentence_;
};

}  // namespace

class FaultCommunicator : public OperationCommunicator {
 public:
  FaultCommunicator(std::unique_ptr<Communicator> inner, FaultPlan plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const CommOptions& options() const override { return inner_->options(); }

  std::unique_ptr<Communicator> split(const std::vector<int>& members,
                                      const std::string& name) override {
    return make_fault(inner_->split(members, name), plan_);
  }
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }
  void require_alive() override { inner_->require_alive(); }

 protected:
  bool records() const override { return false; }

  std::unique_ptr<Work> start(Operation operation, const Stream& stream) override {
    const int64_t index = next_++;
    Fault fault = plan_(operation.kind, index, rank());
    std::this_thread::sleep_for(fault.delay_start);
    if (fault.fail) {
      const std::string sentence = str("group ", options().name, ": ", name_of(operation.kind),
                                       " #", index, " failed on rank ", rank(), " as planned");
      abort(sentence);
      throw CommError(sentence);
    }
    if (fault.never_join) {
      std::vector<int64_t> reached(size(), index + 1);
      reached[rank()] = index;
      return std::make_unique<AbsentWork>(
          *inner_, timeout_sentence(options(), operation.kind, index, size(), reached));
    }
    std::vector<at::Tensor> written = operation.out;
    return std::make_unique<FaultWork>(forward(operation, stream), std::move(written),
                                       std::move(fault));
  }

 private:
  std::unique_ptr<Work> forward(const Operation& operation, const Stream& stream) {
    switch (operation.kind) {
      case CommKind::kAllGather: {
        std::vector<GatherPair> pairs;
        for (size_t i = 0; i < operation.in.size(); ++i) {
          pairs.push_back({operation.out[i], operation.in[i]});
        }
        return inner_->start_all_gather(pairs, stream);
      }
      case CommKind::kReduceScatter: {
        std::vector<ScatterPair> pairs;
        for (size_t i = 0; i < operation.in.size(); ++i) {
          pairs.push_back({operation.in[i], operation.out[i]});
        }
        return inner_->start_reduce_scatter(pairs, stream);
      }
      case CommKind::kAllReduce:
        return inner_->start_all_reduce(operation.out, operation.op, stream);
      case CommKind::kBroadcast:
        return inner_->start_broadcast(operation.out, operation.root, stream);
      case CommKind::kAllToAll:
        return inner_->start_all_to_all(operation.out[0], operation.in[0], stream);
      default:
        return inner_->start_barrier();
    }
  }

  std::unique_ptr<Communicator> inner_;
  FaultPlan plan_;
  int64_t next_ = 0;
};

std::unique_ptr<Communicator> make_fault(std::unique_ptr<Communicator> inner, FaultPlan plan) {
  return std::make_unique<FaultCommunicator>(std::move(inner), std::move(plan));
}

}  // namespace reknit
