#include "reknit/comm/gloo.h"

#include "reknit/base/error.h"
#include "reknit/base/error_text.h"
#include "reknit/base/random.h"
#include "reknit/comm/abort_note.h"
#include "reknit/comm/gloo_transport.h"
#include "reknit/comm/perform.h"
#include "reknit/comm/recorder.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <thread>

namespace reknit {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// How long a freed wait gives the worker to let go of the caller's memory.
constexpr auto kSettle = 5s;

/// What the ranks show each other before every operation.
struct Header {
  uint64_t signature = 0;
  uint64_t part = 0;  ///< part_key of a split's members
  char text[112] = {};
};

uint64_t part_key(const std::vector<int>& members) {
  uint64_t key = members.size();
  for (const int member : members) {
    key = mix(key, static_cast<uint64_t>(member));
  }
  return key;
}

/// In words; empty: every process of the job has answered, or `enough` turned true.
std::string who_is_silent(JobStore& job, const std::function<bool()>& enough) {
  const auto silent = job.silent_ranks(enough);
  if (!silent) {
    return job.without_store();
  }
  return silent->empty() ? ""
                         : str("no sign of life from the processes of ranks ", list_of(*silent),
                               " of ", job.world());
}

/// One operation from joining to its end.
struct Item {
  enum class State { kQueued, kRunning, kDone };

  Operation operation;
  int64_t sequence = 0;
  State state = State::kQueued;
  std::vector<uint64_t> parts;  ///< by rank, of a split: part_key of its members
};

/// A rank's side of a group. Its worker thread carries out the operations one after the
/// other in the order of joining, so that two-step ones cannot cross between ranks.
class GlooGroup : public JobMember {
 public:
  GlooGroup(std::shared_ptr<JobStore> job, std::string path, int rank, int size,
            CommOptions options);
  ~GlooGroup() override;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const CommOptions& options() const { return options_; }
  const std::shared_ptr<JobStore>& job() const { return job_; }

  std::shared_ptr<Item> enqueue(Operation operation);
  void wait(const Item& item);
  bool ready(const Item& item);
  void abandon(const Item& item) noexcept;
  void require_alive();
  void abort(const std::string& reason) noexcept;

  const std::string& path() const override { return path_; }
  int group_rank() const override { return rank_; }
  int64_t joined() const noexcept override { return joined_; }
  void hear_abort(const std::string& reason) noexcept override;
  void close() noexcept override;

 private:
  void work();
  void run(Item& item);
  void compare(Item& item);
  void reduce_scatter(const at::Tensor& full, const at::Tensor& shard, ReduceOp op);
  void all_reduce(const at::Tensor& tensor, ReduceOp op);
  std::string diagnosis(const Item& item, const std::string& what);
  void end(const std::string& reason, bool own) noexcept;
  void note_abort(const std::string& reason, bool own) noexcept;
  void settle(std::unique_lock<std::mutex>& lock, const Item& item);

  const std::shared_ptr<JobStore> job_;
  const std::string path_;
  const int rank_;
  const int size_;
  const CommOptions options_;
  std::unique_ptr<GlooTransport> transport_;  ///< absent in a group of one
  std::atomic<int64_t> joined_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Item>> queue_;
  AbortNote aborted_;
  bool busy_ = false;
  bool stop_ = false;
  std::thread worker_;
};

GlooGroup::GlooGroup(std::shared_ptr<JobStore> job, std::string path, int rank, int size,
                     CommOptions options)
    : job_(std::move(job)),
      path_(std::move(path)),
      rank_(rank),
      size_(size),
      options_(std::move(options)) {
  if (size_ > 1) {
    try {
      transport_ = std::make_unique<GlooTransport>(*job_, path_, rank_, size_, options_.timeout);
    } catch (const std::exception& error) {
      const std::string missing = who_is_silent(*job_, [] { return false; });
      throw CommError(
          str("group ", options_.name, ": rank ", rank_, " of ", size_,
              " cannot connect to the others: ", missing.empty() ? first_line(error) : missing));
    }
  }
  worker_ = std::thread([this] { work(); });
  job_->attach(*this, options_.timeout);
}

GlooGroup::~GlooGroup() {
  job_->detach(*this);
  bool busy = false;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    busy = busy_ || aborted_;
    changed_.notify_all();
  }
  if (busy) {
    job_->flush();
    close();
  }
  worker_.join();
}

std::shared_ptr<Item> GlooGroup::enqueue(Operation operation) {
  auto item = std::make_shared<Item>();
  item->operation = std::move(operation);
  std::lock_guard lock(mutex_);
  aborted_.require_none();
  item->sequence = joined_++;
  queue_.push_back(item);
  changed_.notify_all();
  return item;
}

void GlooGroup::require_alive() {
  std::lock_guard lock(mutex_);
  aborted_.require_none();
}

void GlooGroup::work() {
  c10::AutoGradMode no_grad(false);
  at::set_num_threads(1);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || (!queue_.empty() && !aborted_); });
    if (stop_) {
      return;
    }
    const std::shared_ptr<Item> item = std::move(queue_.front());
    queue_.pop_front();
    item->state = Item::State::kRunning;
    busy_ = true;
    lock.unlock();
    std::string failure;
    try {
      run(*item);
      if (item->operation.record) {
        item->operation.record->finish(Stream());
      }
    } catch (const CommError& error) {
      failure = error.what();
    } catch (const std::exception& error) {
      failure = diagnosis(*item, first_line(error));
    }
    if (!failure.empty()) {
      end(failure, true);
    }
    item->operation.in.clear();
    item->operation.out.clear();
    lock.lock();
    busy_ = false;
    item->state = Item::State::kDone;
    changed_.notify_all();
  }
}

void GlooGroup::run(Item& item) {
  const Operation& operation = item.operation;
  if (size_ == 1) {
    perform({operation});
    item.parts = {part_key(operation.members)};
    return;
  }
  compare(item);
  for (size_t i = 0; i < operation.payload().size(); ++i) {
    const at::Tensor& out = operation.out[i];
    if (operation.payload()[i].numel() == 0) {
      continue;
    }
    switch (operation.kind) {
      case CommKind::kAllGather:
        transport_->all_gather(out, operation.in[i]);
        break;
      case CommKind::kReduceScatter:
        reduce_scatter(operation.in[i], out, ReduceOp::kSum);
        break;
      case CommKind::kAllReduce:
        all_reduce(out, operation.op);
        break;
      case CommKind::kBroadcast:
        transport_->broadcast(out, operation.root);
        break;
      case CommKind::kAllToAll:
        transport_->all_to_all(out, operation.in[i]);
        break;
      case CommKind::kBarrier:
      case CommKind::kSplit:
        break;
    }
  }
}

/// Nobody moves data before all ranks are here with the same operation.
void GlooGroup::compare(Item& item) {
  Header mine{.signature = item.operation.signature(), .part = part_key(item.operation.members)};
  item.operation.describe().copy(mine.text, sizeof(mine.text) - 1);
  const int64_t bytes = sizeof(Header);
  const at::Tensor all = at::empty({size_ * bytes}, at::kByte);
  const at::Tensor own = at::empty({bytes}, at::kByte);
  std::memcpy(own.data_ptr(), &mine, sizeof(mine));
  transport_->all_gather(all, own);
  std::vector<Header> headers(size_);
  std::memcpy(headers.data(), all.data_ptr(), size_ * sizeof(Header));
  for (int rank = 1; rank < size_; ++rank) {
    if (headers[rank].signature != headers[0].signature) {
      throw CommError(
          mismatch_sentence(options_, item.sequence, 0, headers[0].text, rank, headers[rank].text));
    }
  }
  for (const Header& header : headers) {
    item.parts.push_back(header.part);
  }
}

/// Every rank gets all pieces of its own number and adds them in rank order, so the
/// bits are those of the thread ranks.
void GlooGroup::reduce_scatter(const at::Tensor& full, const at::Tensor& shard, ReduceOp op) {
  const at::Tensor pieces = at::empty_like(full);
  transport_->all_to_all(pieces, full);
  std::vector<at::Tensor> by_rank;
  for (int rank = 0; rank < size_; ++rank) {
    by_rank.push_back(piece_of(pieces, rank, size_));
  }
  shard.view({-1}).copy_(reduce_in_order(by_rank, op, at::kCPU));
}

void GlooGroup::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  const int64_t piece = (tensor.numel() + size_ - 1) / size_;
  const at::Tensor padded = at::zeros({piece * size_}, tensor.options());
  padded.narrow(0, 0, tensor.numel()).copy_(tensor.view({-1}));
  const at::Tensor shard = at::empty({piece}, tensor.options());
  reduce_scatter(padded, shard, op);
  transport_->all_gather(padded, shard);
  tensor.view({-1}).copy_(padded.narrow(0, 0, tensor.numel()));
}

/// What is known of an operation that broke: libtorch sees only a closed connection.
std::string GlooGroup::diagnosis(const Item& item, const std::string& what) {
  const auto aborted = [&] {
    std::lock_guard lock(mutex_);
    return aborted_ || stop_;
  };
  const std::string start = str("group ", options_.name, ": ", name_of(item.operation.kind), " #",
                                item.sequence, " failed on rank ", rank_, ": ");
  if (aborted()) {
    return start + what;
  }
  const std::string missing = who_is_silent(*job_, aborted);
  return start + (missing.empty() ? what : missing);
}

void GlooGroup::wait(const Item& item) {
  std::unique_lock lock(mutex_);
  const auto deadline = Clock::now() + options_.timeout;
  const auto over = [&] { return item.state == Item::State::kDone || aborted_; };
  if (!changed_.wait_until(lock, deadline, over)) {
    lock.unlock();
    auto reached = job_->progress(path_, size_);
    if (!reached.empty()) {
      reached[rank_] = joined_;
    }
    std::string sentence =
        timeout_sentence(options_, item.operation.kind, item.sequence, size_, reached);
    if (reached.empty()) {
      sentence += ": " + job_->without_store();
    }
    lock.lock();
    if (!over()) {
      lock.unlock();
      end(sentence, true);
      lock.lock();
    }
  }
  settle(lock, item);
  aborted_.require_none();
}

/// Blocks while the worker may still touch the item's tensors (not for ever: they are
/// kept alive by the item).
void GlooGroup::settle(std::unique_lock<std::mutex>& lock, const Item& item) {
  changed_.wait_for(lock, kSettle, [&] { return item.state != Item::State::kRunning; });
}

bool GlooGroup::ready(const Item& item) {
  std::lock_guard lock(mutex_);
  return item.state == Item::State::kDone || aborted_;
}

void GlooGroup::abandon(const Item& item) noexcept {
  abort(abandon_sentence(options_, item.operation.kind, item.sequence, rank_));
  std::unique_lock lock(mutex_);
  settle(lock, item);
}

void GlooGroup::abort(const std::string& reason) noexcept {
  end(reason, false);
}

/// Here and everywhere; `own`: this rank has found the error.
void GlooGroup::end(const std::string& reason, bool own) noexcept {
  note_abort(reason, own);
  job_->abort(path_, reason);
}

void GlooGroup::hear_abort(const std::string& reason) noexcept {
  note_abort(reason, false);
}

void GlooGroup::note_abort(const std::string& reason, bool own) noexcept {
  std::lock_guard lock(mutex_);
  if (aborted_.set(reason, own)) {
    queue_.clear();
    changed_.notify_all();
  }
}

void GlooGroup::close() noexcept {
  if (transport_) {
    transport_->close();
  }
}

class GlooWork : public Work {
 public:
  GlooWork(std::shared_ptr<GlooGroup> group, std::shared_ptr<Item> item)
      : group_(std::move(group)), item_(std::move(item)) {}

  void wait(const Stream&) override { group_->wait(*item_); }
  bool ready() const noexcept override { return group_->ready(*item_); }
  void abandon() noexcept override { group_->abandon(*item_); }

 private:
  std::shared_ptr<GlooGroup> group_;
  std::shared_ptr<Item> item_;
};

class GlooCommunicator : public OperationCommunicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<GlooGroup> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const CommOptions& options() const override { return group_->options(); }
  void abort(const std::string& reason) noexcept override { group_->abort(reason); }
  void require_alive() override { group_->require_alive(); }

  std::unique_ptr<Communicator> split(const std::vector<int>& members,
                                      const std::string& name) override {
    const CommOptions part = part_options(options(), size(), rank(), members, name);
    auto item = group_->enqueue(Operation{.kind = CommKind::kSplit, .members = members});
    group_->wait(*item);
    for (const int member : members) {
      if (item->parts[member] != item->parts[rank()]) {
        const std::string sentence = split_sentence(options(), item->sequence, rank(), members);
        abort(sentence);
        throw CommError(sentence);
      }
    }
    const auto mine = std::find(members.begin(), members.end(), rank()) - members.begin();
    const std::string path = str(group_->path(), "/", item->sequence, ".",
                                 *std::min_element(members.begin(), members.end()));
    return std::make_unique<GlooCommunicator>(std::make_shared<GlooGroup>(
        group_->job(), path, static_cast<int>(mine), static_cast<int>(members.size()), part));
  }

 protected:
  std::unique_ptr<Work> start(Operation operation, const Stream&) override {
    return std::make_unique<GlooWork>(group_, group_->enqueue(std::move(operation)));
  }

 private:
  std::shared_ptr<GlooGroup> group_;
};

}  // namespace

std::unique_ptr<Communicator> make_gloo(const Rendezvous& rendezvous, CommOptions options) {
  auto job = JobStore::join(rendezvous, options);
  const std::string path = job->next_path();
  return std::make_unique<GlooCommunicator>(std::make_shared<GlooGroup>(
      job, path, rendezvous.rank, rendezvous.world, std::move(options)));
}

}  // namespace reknit
