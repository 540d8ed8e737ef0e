#include "tests/store/explorer_trace.h"

#include "reknit/base/error.h"
#include "tests/store/explorer_device.h"

namespace reknit::explorer {
namespace {

Cells piece(Cells cells, int index, int pieces) {
  const int64_t size = cells.size() / pieces;
  return {cells.begin + index * size, cells.begin + (index + 1) * size};
}

void add_gather(Node& node, const std::vector<Operation>& sides, size_t pair) {
  const int size = static_cast<int>(sides.size());
  for (const Operation& side : sides) {
    for (int from = 0; from < size; ++from) {
      node.assigns.push_back(
          {piece(cells_of(side.out[pair]), from, size), {cells_of(sides[from].in[pair])}, {}});
    }
  }
}

void add_scatter(Node& node, const std::vector<Operation>& sides, size_t pair) {
  const int size = static_cast<int>(sides.size());
  for (const Operation& side : sides) {
    node.assigns.push_back({cells_of(side.in[pair]), {}, {poison()}});  // what is consumed
  }
  for (int to = 0; to < size; ++to) {
    Assign sum{cells_of(sides[to].out[pair]), {}, {}};
    for (const Operation& side : sides) {
      sum.sum_of.push_back(piece(cells_of(side.in[pair]), to, size));
    }
    node.assigns.push_back(std::move(sum));
  }
}

void add_all_reduce(Node& node, const std::vector<Operation>& sides, size_t tensor) {
  Assign sum;
  for (const Operation& side : sides) {
    sum.sum_of.push_back(cells_of(side.out[tensor]));
  }
  for (const Operation& side : sides) {
    sum.to = cells_of(side.out[tensor]);
    node.assigns.push_back(sum);
  }
}

void add_effects(Node& node, const std::vector<Operation>& sides) {
  for (size_t i = 0; i < sides[0].payload().size(); ++i) {
    switch (sides[0].kind) {
      case CommKind::kAllGather:
        add_gather(node, sides, i);
        break;
      case CommKind::kReduceScatter:
        add_scatter(node, sides, i);
        break;
      case CommKind::kAllReduce:
        add_all_reduce(node, sides, i);
        break;
      case CommKind::kBroadcast:
        for (const Operation& side : sides) {
          node.assigns.push_back(
              {cells_of(side.out[i]), {cells_of(sides[sides[0].root].out[i])}, {}});
        }
        break;
      default:
        throw StateError(str("the explorer has no ", name_of(sides[0].kind)));
    }
  }
}

}  // namespace

Content content_of(std::initializer_list<uint64_t> parts) {
  uint64_t hash = 0x9E3779B97F4A7C15ULL;
  for (const uint64_t part : parts) {
    hash = (hash ^ part) * 0xBF58476D1CE4E5B9ULL;
    hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBULL;
    hash ^= hash >> 31;
  }
  return hash;
}

Content poison() {
  static const Content value = content_of({0xDEAD});
  return value;
}

int Trace::add(Node node) {
  nodes_.push_back(std::move(node));
  return static_cast<int>(nodes_.size()) - 1;
}

Cells Trace::allocate(int64_t bytes) {
  const int64_t begin = num_cells_;
  num_cells_ += (bytes + kCellBytes - 1) / kCellBytes;
  return {begin, num_cells_};
}

std::string Trace::name_of(Content content) const {
  if (content == 0) {
    return "zero";
  }
  if (content == poison()) {
    return "released or unwritten memory";
  }
  const auto found = names_.find(content);
  return found == names_.end() ? "another sum" : found->second;
}

void Recorder::enqueue(int rank, int64_t stream, Node node) {
  Frontier& frontier = streams_[{rank, stream}];
  node.rank = rank;
  node.after = frontier;
  if (host_[rank] >= 0) {
    node.after.push_back(host_[rank]);
  }
  frontier = {trace_.add(std::move(node))};
}

void Recorder::stream_waits(int rank, int64_t stream, const Frontier& event) {
  const Frontier copy = event;
  Frontier& frontier = streams_[{rank, stream}];
  frontier.insert(frontier.end(), copy.begin(), copy.end());
}

int Recorder::host_step(int rank, std::string label) {
  Node node{rank, std::move(label), {}, {}, {}};
  if (host_[rank] >= 0) {
    node.after.push_back(host_[rank]);
  }
  host_[rank] = trace_.add(std::move(node));
  return host_[rank];
}

void Recorder::host_waits(int rank, const Frontier& event) {
  Node& node = trace_.node(host_step(rank, "host synchronizes"));
  node.after.insert(node.after.end(), event.begin(), event.end());
}

Recorder::Joint& Recorder::joint(const std::string& group, const std::vector<int>& members,
                                 int64_t sequence) {
  Joint& joint = joints_[{group, sequence}];
  if (joint.members.empty()) {
    joint.members = members;
    joint.joined.resize(members.size());
    joint.sides.resize(members.size());
    joint.all_joined = trace_.add({-1, str("all ranks join ", group, " ", sequence), {}, {}, {}});
    joint.performed = trace_.add({-1, str(group, " ", sequence), {}, {}, {joint.all_joined}});
  }
  return joint;
}

void Recorder::join(const std::string& group, const std::vector<int>& members, int64_t sequence,
                    int index, Operation operation, const Frontier& inputs) {
  Joint& joint = this->joint(group, members, sequence);
  joint.joined[index] = true;
  joint.sides[index] = std::move(operation);
  const int step = host_step(members[index], str("host joins ", group, " ", sequence));
  trace_.node(joint.all_joined).after.push_back(step);
  auto& after = trace_.node(joint.performed).after;
  after.insert(after.end(), inputs.begin(), inputs.end());
}

void Recorder::wait(const std::string& group, int64_t sequence, int rank, int64_t stream) {
  const Joint& joint = joints_.at({group, sequence});
  const int step = host_step(rank, str("host waits for ", group, " ", sequence));
  trace_.node(step).after.push_back(joint.all_joined);
  stream_waits(rank, stream, {joint.performed});
}

void Recorder::finish() {
  for (auto& [key, joint] : joints_) {
    for (size_t i = 0; i < joint.members.size(); ++i) {
      require<StateError>(joint.joined[i], "rank ", joint.members[i], " never joins ", key.first,
                          " ", key.second, ": the others wait forever");
      require<StateError>(joint.sides[0].agrees_with(joint.sides[i]), "ranks disagree on ",
                          key.first, " ", key.second, ": ", joint.sides[0].describe(), " against ",
                          joint.sides[i].describe());
    }
    Node& node = trace_.node(joint.performed);
    node.label = str(joint.sides[0].describe(), " (", node.label, ")");
    add_effects(node, joint.sides);
  }
}

}  // namespace reknit::explorer
