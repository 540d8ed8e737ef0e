#include "reknit/comm/operation.h"

#include "reknit/base/error.h"
#include "reknit/base/random.h"
#include "reknit/comm/recorder.h"
#include "reknit/comm/topology.h"

#include <algorithm>
#include <exception>
#include <set>

namespace reknit {
namespace {

CommCounts::Entry& entry_of(CommCounts& counts, CommKind kind) {
  switch (kind) {
    case CommKind::kAllGather:
      return counts.all_gather;
    case CommKind::kReduceScatter:
      return counts.reduce_scatter;
    case CommKind::kAllReduce:
      return counts.all_reduce;
    case CommKind::kBroadcast:
      return counts.broadcast;
    case CommKind::kAllToAll:
      return counts.all_to_all;
    default:
      return counts.barrier;
  }
}

std::string shape_of(const at::Tensor& tensor) {
  return reknit::str(tensor.scalar_type(), " ", tensor.numel());
}

void check_pair(CommKind kind, const at::Tensor& full, const at::Tensor& shard, int size) {
  require<StateError>(
      full.scalar_type() == shard.scalar_type() && full.numel() == shard.numel() * size,
      name_of(kind), " over ", size, " ranks of a full tensor ", shape_of(full), " and a shard ",
      shape_of(shard), ": dtypes must be equal and full must be ", size, " shards");
}

void check(const Operation& operation, int size, const Stream& stream) {
  for (const auto* tensors : {&operation.in, &operation.out}) {
    for (const at::Tensor& tensor : *tensors) {
      require<StateError>(tensor.defined() && tensor.is_contiguous(), name_of(operation.kind),
                          " needs contiguous tensors");
      require<StateError>(tensor.device() == stream.device(), name_of(operation.kind),
                          " of a tensor on ", tensor.device().str(), " on a stream of ",
                          stream.device().str());
    }
  }
  switch (operation.kind) {
    case CommKind::kAllGather:
      for (size_t i = 0; i < operation.in.size(); ++i) {
        check_pair(operation.kind, operation.out[i], operation.in[i], size);
      }
      return;
    case CommKind::kReduceScatter:
      for (size_t i = 0; i < operation.in.size(); ++i) {
        check_pair(operation.kind, operation.in[i], operation.out[i], size);
      }
      return;
    case CommKind::kBroadcast:
      require<StateError>(operation.root >= 0 && operation.root < size, "broadcast from rank ",
                          operation.root, " of ", size);
      return;
    case CommKind::kAllToAll: {
      const at::Tensor& in = operation.in[0];
      const at::Tensor& out = operation.out[0];
      require<StateError>(in.scalar_type() == out.scalar_type() && in.numel() == out.numel() &&
                              in.numel() % size == 0,
                          "all_to_all over ", size, " ranks from ", shape_of(in), " to ",
                          shape_of(out), ": both must be the same ", size, " pieces");
      require<StateError>(in.numel() == 0 || in.data_ptr() != out.data_ptr(),
                          "all_to_all cannot work in place");
      return;
    }
    default:
      return;
  }
}

}  // namespace

const char* name_of(CommKind kind) {
  switch (kind) {
    case CommKind::kAllGather:
      return "all_gather";
    case CommKind::kReduceScatter:
      return "reduce_scatter";
    case CommKind::kAllReduce:
      return "all_reduce";
    case CommKind::kBroadcast:
      return "broadcast";
    case CommKind::kAllToAll:
      return "all_to_all";
    case CommKind::kBarrier:
      return "barrier";
    case CommKind::kSplit:
      return "split";
  }
  return "unknown";
}

int64_t Operation::payload_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : payload()) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

bool Operation::agrees_with(const Operation& other) const {
  if (kind != other.kind || op != other.op || root != other.root ||
      payload().size() != other.payload().size()) {
    return false;
  }
  for (size_t i = 0; i < payload().size(); ++i) {
    const at::Tensor& a = payload()[i];
    const at::Tensor& b = other.payload()[i];
    if (a.numel() != b.numel() || a.scalar_type() != b.scalar_type()) {
      return false;
    }
  }
  return true;
}

uint64_t Operation::signature() const {
  uint64_t hash =
      mix(mix(static_cast<uint64_t>(kind), static_cast<uint64_t>(op)), static_cast<uint64_t>(root));
  for (const at::Tensor& tensor : payload()) {
    hash = mix(mix(hash, static_cast<uint64_t>(tensor.numel())),
               static_cast<uint64_t>(tensor.scalar_type()));
  }
  return hash;
}

std::string Operation::describe() const {
  std::string text = name_of(kind);
  if (kind == CommKind::kAllReduce) {
    text += op == ReduceOp::kMax ? "(max)" : "(sum)";
  }
  if (kind == CommKind::kBroadcast) {
    text += str("(from rank ", root, ")");
  }
  const char* separator = " of ";
  size_t left = payload().size();
  for (const at::Tensor& tensor : payload()) {
    if (left + 4 == payload().size()) {
      return str(text, " and ", left, " more");
    }
    text += separator + shape_of(tensor);
    separator = ", ";
    --left;
  }
  return text;
}

CommOptions part_options(const CommOptions& whole, int size, int rank,
                         const std::vector<int>& members, const std::string& name) {
  const std::set<int> all(members.begin(), members.end());
  require<StateError>(all.contains(rank) && all.size() == members.size() && *all.begin() >= 0 &&
                          *all.rbegin() < size,
                      "group ", whole.name, ": rank ", rank, " of ", size,
                      " cannot form a group of the ranks ", list_of(members));
  CommOptions part = whole;
  part.name = str(name, ".", *all.begin());
  part.nodes.clear();
  for (const int member : members) {
    part.nodes.push_back(whole.nodes.empty() ? 0 : whole.nodes.at(member));
  }
  return part;
}

std::string split_sentence(const CommOptions& options, int64_t sequence, int rank,
                           const std::vector<int>& members) {
  return str("group ", options.name, ": ranks disagree on split #", sequence, ": rank ", rank,
             " names the members ", list_of(members), ", which name others");
}

at::Tensor piece_of(const at::Tensor& full, int index, int pieces) {
  const int64_t length = full.numel() / pieces;
  return full.view({-1}).narrow(0, index * length, length);
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) {
      text += (last == i + 1 ? ", " : " to ") + std::to_string(ranks[last]);
    }
    i = last + 1;
  }
  return text;
}

std::string timeout_sentence(const CommOptions& options, CommKind kind, int64_t sequence, int size,
                             const std::vector<int64_t>& reached) {
  std::vector<int> missing;
  std::string progress;
  for (int rank = 0; rank < static_cast<int>(reached.size()); ++rank) {
    if (reached[rank] > sequence) {
      continue;
    }
    missing.push_back(rank);
    if (missing.size() <= 4) {
      progress += str(progress.empty() ? " (" : ", ", "rank ", rank, " has joined ", reached[rank],
                      " operations");
    }
  }
  if (!progress.empty()) {
    progress += ")";
  }
  const double seconds = static_cast<double>(options.timeout.count()) / 1000;
  const std::string start = str("group ", options.name, ": ", name_of(kind), " #", sequence,
                                " timed out after ", seconds, " s");
  if (reached.empty()) {
    return start;
  }
  if (missing.empty()) {
    return start + " although all ranks have joined";
  }
  return str(start, ": ranks missing: ", list_of(missing), " of ", size, progress);
}

std::string mismatch_sentence(const CommOptions& options, int64_t sequence, int rank,
                              const std::string& operation, int other_rank,
                              const std::string& other_operation) {
  return str("group ", options.name, ": ranks disagree on operation #", sequence, ": rank ", rank,
             " joins ", operation, ", rank ", other_rank, " joins ", other_operation);
}

std::string abandon_sentence(const CommOptions& options, CommKind kind, int64_t sequence,
                             int rank) {
  if (std::uncaught_exceptions() > 0) {
    return str("group ", options.name, ": rank ", rank, " failed while ", name_of(kind), " #",
               sequence, " was in flight");
  }
  return str("group ", options.name, ": rank ", rank, " dropped the result of ", name_of(kind),
             " #", sequence, " without waiting for it");
}

OperationCommunicator::OperationCommunicator() = default;

OperationCommunicator::~OperationCommunicator() {
  if (history_) {
    history_->communicator = nullptr;
  }
}

std::unique_ptr<Work> OperationCommunicator::checked_start(Operation operation,
                                                           const Stream& stream) {
  check(operation, size(), stream);
  CommCounts::Entry& entry = entry_of(counts_, operation.kind);
  const CommCounts::Entry traffic = traffic_of(operation, options().nodes, rank(), size());
  if (Recorder* recorder = Recorder::current(); recorder != nullptr && records()) {
    operation.record = recorder->begin(*this, history_, operation, stream);
  }
  auto work = start(std::move(operation), stream);
  entry += traffic;
  return work;
}

std::unique_ptr<Work> OperationCommunicator::start_all_gather(const std::vector<GatherPair>& pairs,
                                                              const Stream& stream) {
  Operation operation{.kind = CommKind::kAllGather};
  for (const GatherPair& pair : pairs) {
    operation.in.push_back(pair.shard);
    operation.out.push_back(pair.full);
  }
  return checked_start(std::move(operation), stream);
}

std::unique_ptr<Work> OperationCommunicator::start_reduce_scatter(
    const std::vector<ScatterPair>& pairs, const Stream& stream) {
  Operation operation{.kind = CommKind::kReduceScatter};
  for (const ScatterPair& pair : pairs) {
    operation.in.push_back(pair.full);
    operation.out.push_back(pair.shard);
  }
  return checked_start(std::move(operation), stream);
}

std::unique_ptr<Work> OperationCommunicator::start_all_reduce(
    const std::vector<at::Tensor>& tensors, ReduceOp op, const Stream& stream) {
  return checked_start(Operation{.kind = CommKind::kAllReduce, .op = op, .out = tensors}, stream);
}

std::unique_ptr<Work> OperationCommunicator::start_broadcast(const std::vector<at::Tensor>& tensors,
                                                             int root, const Stream& stream) {
  return checked_start(Operation{.kind = CommKind::kBroadcast, .root = root, .out = tensors},
                       stream);
}

std::unique_ptr<Work> OperationCommunicator::start_all_to_all(const at::Tensor& out,
                                                              const at::Tensor& in,
                                                              const Stream& stream) {
  return checked_start(Operation{.kind = CommKind::kAllToAll, .in = {in}, .out = {out}}, stream);
}

std::unique_ptr<Work> OperationCommunicator::start_barrier() {
  return checked_start(Operation{.kind = CommKind::kBarrier}, Stream());
}

}  // namespace reknit
