#include "reknit/comm/threads.h"

#include "reknit/base/error.h"
#include "reknit/base/error_text.h"
#include "reknit/base/pause.h"
#include "reknit/comm/perform.h"
#include "reknit/comm/recorder.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace reknit {
namespace {

using Clock = std::chrono::steady_clock;

/// One operation while its ranks join. Guarded by the group's mutex, except that the
/// performing thread alone uses `sides` and `inputs` while `state` is kPerforming.
struct Joint {
  enum class State { kJoining, kPerforming, kPerformed };

  Joint(int size, int64_t number) : sequence(number), joined(size), sides(size), inputs(size) {}

  const int64_t sequence;
  State state = State::kJoining;
  int count = 0;
  std::vector<bool> joined;
  std::vector<Operation> sides;                      ///< by rank; cleared once performed
  std::vector<Event> inputs;                         ///< by rank: its inputs are complete
  std::vector<Stream> streams;                       ///< CUDA: one communication stream per device
  std::vector<Event> outputs;                        ///< beside `streams`: all outputs are complete
  std::vector<std::unique_ptr<Communicator>> split;  ///< by rank, for kSplit
};

class ThreadGroup : public std::enable_shared_from_this<ThreadGroup> {
 public:
  ThreadGroup(int size, CommOptions options)
      : size_(size), options_(std::move(options)), reached_(size, 0) {}

  int size() const { return size_; }
  const CommOptions& options() const { return options_; }

  std::shared_ptr<Joint> join(int rank, Operation operation, const Stream& stream);
  void wait(const Joint& joint, CommKind kind, const Stream& stream);
  bool ready(const Joint& joint) const;
  void abandon(const Joint& joint, CommKind kind, int rank) noexcept;
  void abort(const std::string& reason) noexcept;
  void require_alive() const;
  std::unique_ptr<Communicator> take_split(Joint& joint, int rank);

 private:
  std::shared_ptr<Joint> joint_of(int rank);
  void throw_if_aborted() const;
  void require_agreement(std::unique_lock<std::mutex>& lock, const Joint& joint, int rank,
                         const Operation& operation);
  void add_stream(Joint& joint, c10::Device device);
  void perform_last(std::unique_lock<std::mutex>& lock, Joint& joint, int rank);
  void settle(std::unique_lock<std::mutex>& lock, const Joint& joint);
  void await(const Event& outputs, const Joint& joint, CommKind kind, Clock::time_point deadline);
  [[noreturn]] void fail(std::unique_lock<std::mutex>& lock, const std::string& reason);
  void perform_joint(Joint& joint);
  void queue_on_devices(Joint& joint);
  static Stream stream_of(const Joint& joint, const Operation& side);
  void make_split(Joint& joint);

  const int size_;
  const CommOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> reached_;             ///< operations joined, by rank
  std::deque<std::shared_ptr<Joint>> open_;  ///< joined by some ranks, in order
  std::optional<std::string> aborted_;
  std::vector<std::weak_ptr<ThreadGroup>> children_;
  std::vector<Stream> device_streams_;  ///< the group's communication streams
};

class ThreadWork : public Work {
 public:
  ThreadWork(std::shared_ptr<ThreadGroup> group, std::shared_ptr<Joint> joint, CommKind kind,
             int rank)
      : group_(std::move(group)), joint_(std::move(joint)), kind_(kind), rank_(rank) {}

  void wait(const Stream& stream) override { group_->wait(*joint_, kind_, stream); }
  bool ready() const noexcept override { return group_->ready(*joint_); }
  void abandon() noexcept override { group_->abandon(*joint_, kind_, rank_); }

 private:
  std::shared_ptr<ThreadGroup> group_;
  std::shared_ptr<Joint> joint_;
  CommKind kind_;
  int rank_;
};

class ThreadCommunicator : public OperationCommunicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  const CommOptions& options() const override { return group_->options(); }

  std::unique_ptr<Communicator> split(const std::vector<int>& members,
                                      const std::string& name) override {
    part_options(options(), size(), rank_, members, name);  // checks them before anyone waits
    auto joint = group_->join(
        rank_, Operation{.kind = CommKind::kSplit, .members = members, .name = name}, Stream());
    group_->wait(*joint, CommKind::kSplit, Stream());
    return group_->take_split(*joint, rank_);
  }

  void abort(const std::string& reason) noexcept override { group_->abort(reason); }
  void require_alive() override { group_->require_alive(); }

 protected:
  std::unique_ptr<Work> start(Operation operation, const Stream& stream) override {
    const CommKind kind = operation.kind;
    auto joint = group_->join(rank_, std::move(operation), stream);
    return std::make_unique<ThreadWork>(group_, std::move(joint), kind, rank_);
  }

 private:
  std::shared_ptr<ThreadGroup> group_;
  int rank_;
};

/// Needs the lock.
void ThreadGroup::throw_if_aborted() const {
  if (aborted_) {
    throw AbortedError(*aborted_);
  }
}

void ThreadGroup::require_alive() const {
  std::lock_guard lock(mutex_);
  throw_if_aborted();
}

/// Aborts with `reason` and throws it as this rank's own error.
void ThreadGroup::fail(std::unique_lock<std::mutex>& lock, const std::string& reason) {
  lock.unlock();
  abort(reason);
  throw CommError(reason);
}

/// Blocks until nobody works on the joint's tensors, which the caller may then free.
void ThreadGroup::settle(std::unique_lock<std::mutex>& lock, const Joint& joint) {
  changed_.wait(lock, [&] { return joint.state != Joint::State::kPerforming; });
}

/// The operation that `rank` joins next.
std::shared_ptr<Joint> ThreadGroup::joint_of(int rank) {
  const int64_t sequence = reached_[rank]++;
  if (open_.empty() || open_.back()->sequence < sequence) {
    open_.push_back(std::make_shared<Joint>(size_, sequence));
  }
  return open_[sequence - open_.front()->sequence];
}

void ThreadGroup::require_agreement(std::unique_lock<std::mutex>& lock, const Joint& joint,
                                    int rank, const Operation& operation) {
  const auto first = std::find(joint.joined.begin(), joint.joined.end(), true);
  if (first == joint.joined.end()) {
    return;
  }
  const auto other = first - joint.joined.begin();
  if (!joint.sides[other].agrees_with(operation)) {
    fail(lock, mismatch_sentence(options_, joint.sequence, static_cast<int>(other),
                                 joint.sides[other].describe(), rank, operation.describe()));
  }
}

void ThreadGroup::add_stream(Joint& joint, c10::Device device) {
  const auto on_device = [&](const Stream& known) { return known.device() == device; };
  if (std::any_of(joint.streams.begin(), joint.streams.end(), on_device)) {
    return;
  }
  const auto known = std::find_if(device_streams_.begin(), device_streams_.end(), on_device);
  if (known != device_streams_.end()) {
    joint.streams.push_back(*known);
    return;
  }
  device_streams_.push_back(Stream::create(device, true));
  joint.streams.push_back(device_streams_.back());
}

std::shared_ptr<Joint> ThreadGroup::join(int rank, Operation operation, const Stream& stream) {
  Event inputs;
  inputs.record(stream);
  std::unique_lock lock(mutex_);
  throw_if_aborted();
  std::shared_ptr<Joint> joint = joint_of(rank);
  require_agreement(lock, *joint, rank, operation);
  joint->joined[rank] = true;
  joint->sides[rank] = std::move(operation);
  joint->inputs[rank] = std::move(inputs);
  if (!stream.on_cpu()) {
    add_stream(*joint, stream.device());
  }
  if (++joint->count == size_) {
    open_.pop_front();
    perform_last(lock, *joint, rank);
  }
  return joint;
}

/// Performs for all ranks, without the lock; returns with it.
void ThreadGroup::perform_last(std::unique_lock<std::mutex>& lock, Joint& joint, int rank) {
  joint.state = Joint::State::kPerforming;
  lock.unlock();
  std::optional<std::string> failure;
  try {
    perform_joint(joint);
  } catch (const std::exception& error) {
    failure = str("group ", options_.name, ": ", joint.sides[rank].describe(), " #", joint.sequence,
                  " failed on rank ", rank, ": ", first_line(error));
  }
  joint.sides.clear();
  if (failure) {
    abort(*failure);  // before anyone sees the joint as performed
  }
  lock.lock();
  joint.state = Joint::State::kPerformed;
  changed_.notify_all();
  if (failure) {
    throw CommError(*failure);
  }
}

void ThreadGroup::perform_joint(Joint& joint) {
  if (joint.sides[0].kind == CommKind::kSplit) {
    make_split(joint);
  } else if (joint.streams.empty()) {
    perform(joint.sides);
  } else {
    queue_on_devices(joint);
  }
  for (const Operation& side : joint.sides) {
    if (side.record) {
      side.record->finish(stream_of(joint, side));
    }
  }
}

/// Where the rank with this side gets its result.
Stream ThreadGroup::stream_of(const Joint& joint, const Operation& side) {
  for (const Stream& stream : joint.streams) {
    if (!side.payload().empty() && side.payload().front().device() == stream.device()) {
      return stream;
    }
  }
  return {};
}

void ThreadGroup::queue_on_devices(Joint& joint) {
  std::deque<StreamScope> scopes;
  for (const Stream& stream : joint.streams) {
    scopes.emplace_back(stream);
    for (const Event& inputs : joint.inputs) {
      stream.wait(inputs);
    }
    // The allocator must not hand this memory on while our stream still uses it.
    for (const Operation& side : joint.sides) {
      for (const auto* tensors : {&side.in, &side.out}) {
        for (const at::Tensor& tensor : *tensors) {
          if (tensor.device() == stream.device()) {
            tensor.record_stream(*stream.native());
          }
        }
      }
    }
  }
  perform(joint.sides);
  joint.outputs.resize(joint.streams.size());
  for (size_t i = 0; i < joint.streams.size(); ++i) {
    joint.outputs[i].record(joint.streams[i]);
  }
}

void ThreadGroup::make_split(Joint& joint) {
  joint.split.resize(size_);
  for (int rank = 0; rank < size_; ++rank) {
    const Operation& side = joint.sides[rank];
    for (const int member : side.members) {
      require<CommError>(joint.sides[member].members == side.members,
                         split_sentence(options_, joint.sequence, rank, side.members));
    }
    if (side.members.front() != rank) {
      continue;
    }
    auto group =
        std::make_shared<ThreadGroup>(static_cast<int>(side.members.size()),
                                      part_options(options_, size_, rank, side.members, side.name));
    {
      std::lock_guard lock(mutex_);
      children_.push_back(group);
    }
    for (size_t i = 0; i < side.members.size(); ++i) {
      joint.split[side.members[i]] =
          std::make_unique<ThreadCommunicator>(group, static_cast<int>(i));
    }
  }
}

std::unique_ptr<Communicator> ThreadGroup::take_split(Joint& joint, int rank) {
  std::lock_guard lock(mutex_);
  return std::move(joint.split[rank]);
}

void ThreadGroup::wait(const Joint& joint, CommKind kind, const Stream& stream) {
  std::unique_lock lock(mutex_);
  const auto deadline = Clock::now() + options_.timeout;
  while (joint.state != Joint::State::kPerformed && !aborted_) {
    const bool late = changed_.wait_until(lock, deadline) == std::cv_status::timeout;
    if (late && joint.state == Joint::State::kJoining && !aborted_) {
      fail(lock, timeout_sentence(options_, kind, joint.sequence, size_, reached_));
    }
    if (joint.state == Joint::State::kPerforming) {
      settle(lock, joint);
    }
  }
  settle(lock, joint);
  throw_if_aborted();
  lock.unlock();
  for (const Event& outputs : joint.outputs) {
    if (stream.on_cpu()) {
      await(outputs, joint, kind, deadline);
    }
    stream.wait(outputs);
  }
}

/// Blocks the host, without the lock, until a device has written its outputs.
void ThreadGroup::await(const Event& outputs, const Joint& joint, CommKind kind,
                        Clock::time_point deadline) {
  for (Pause pause; !outputs.done(); pause()) {
    std::unique_lock lock(mutex_);
    throw_if_aborted();
    if (Clock::now() > deadline) {
      fail(lock, timeout_sentence(options_, kind, joint.sequence, size_, reached_));
    }
  }
}

bool ThreadGroup::ready(const Joint& joint) const {
  std::lock_guard lock(mutex_);
  return joint.state == Joint::State::kPerformed || aborted_;
}

void ThreadGroup::abandon(const Joint& joint, CommKind kind, int rank) noexcept {
  abort(abandon_sentence(options_, kind, joint.sequence, rank));
  std::unique_lock lock(mutex_);
  settle(lock, joint);
}

void ThreadGroup::abort(const std::string& reason) noexcept {
  std::vector<std::weak_ptr<ThreadGroup>> children;
  {
    std::lock_guard lock(mutex_);
    if (aborted_) {
      return;
    }
    aborted_ = reason;
    children.swap(children_);
    open_.clear();
    changed_.notify_all();
  }
  for (const auto& child : children) {
    if (auto group = child.lock()) {
      group->abort(reason);
    }
  }
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_group(int size, CommOptions options) {
  require<StateError>(size >= 1, "a group of ", size, " ranks");
  auto group = std::make_shared<ThreadGroup>(size, std::move(options));
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  }
  return ranks;
}

}  // namespace reknit
