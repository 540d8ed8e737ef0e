// What a run of the store asked its devices to do: operations on cells of memory and
// what each must come after. Recorded once per rank, then executed in every order.
//
// A cell is kCellBytes of a buffer. Its content is one number; numbers add as gradients
// do, so "the sum of these contributions" and "version 2 of this weight" are numbers.
#pragma once

#include "reknit/comm/operation.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace reknit::explorer {

constexpr int64_t kCellBytes = 128;

using Content = uint64_t;
/// A number that stands for the parts, the same wherever it is computed.
Content content_of(std::initializer_list<uint64_t> parts);

/// Cells [begin, end) of the trace's flat memory.
struct Cells {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// Cell i of `to` becomes the sum of cells i of `sum_of`, plus `plus` (empty: 0; one
/// value for all cells; or one a cell).
struct Assign {
  Cells to;
  std::vector<Cells> sum_of;
  std::vector<Content> plus;
};

/// Cell i must hold value i.
struct Expect {
  Cells cells;
  std::vector<Content> values;
};

/// One operation of a device, or a step of a host (no effect on memory). All its
/// expectations and reads come before its writes; it happens at one moment.
struct Node {
  int rank = -1;      ///< -1: of several ranks
  std::string label;  ///< "gather: all_gather 3", for reports
  std::vector<Expect> expects;
  std::vector<Assign> assigns;
  std::vector<int> after;
};

class Trace {
 public:
  int add(Node node);
  Node& node(int id) { return nodes_.at(id); }
  const std::vector<Node>& nodes() const { return nodes_; }

  /// New memory, filled with poison.
  Cells allocate(int64_t bytes);
  int64_t num_cells() const { return num_cells_; }
  /// What a content is called in reports.
  void name(Content content, std::string text) { names_[content] = std::move(text); }
  std::string name_of(Content content) const;

 private:
  std::vector<Node> nodes_;
  int64_t num_cells_ = 0;
  std::map<Content, std::string> names_;
};

/// Released, consumed or never written memory.
Content poison();

/// Records the ranks, one after the other: each runs its real host program on the
/// simulated device while `rank` is current.
class Recorder {
 public:
  explicit Recorder(int world) : world_(world), host_(world, -1) {}

  Trace& trace() { return trace_; }
  int world() const { return world_; }

  // The device's side; see explorer_device.h.
  using Frontier = std::vector<int>;  ///< nodes that a later operation comes after
  void enqueue(int rank, int64_t stream, Node node);
  const Frontier& frontier(int rank, int64_t stream) { return streams_[{rank, stream}]; }
  void stream_waits(int rank, int64_t stream, const Frontier& event);
  void host_waits(int rank, const Frontier& event);

  // The communicator's side; `sequence` counts the group's operations.
  void join(const std::string& group, const std::vector<int>& members, int64_t sequence, int index,
            Operation operation, const Frontier& inputs);
  void wait(const std::string& group, int64_t sequence, int rank, int64_t stream);

  /// A fault that contents may not show, such as a slot that is left; the first one counts.
  void complain(const std::string& sentence) {
    complaint_ = complaint_.empty() ? sentence : complaint_;
  }
  const std::string& complaint() const { return complaint_; }

  /// All ranks have been recorded: turns the collectives into assignments. Throws
  /// StateError if one of them waits for a rank that never joins.
  void finish();

 private:
  struct Joint {
    std::vector<int> members;
    std::vector<bool> joined;
    std::vector<Operation> sides;
    int all_joined = -1;  ///< host steps of all members
    int performed = -1;
  };
  Joint& joint(const std::string& group, const std::vector<int>& members, int64_t sequence);
  int host_step(int rank, std::string label);

  int world_;
  std::string complaint_;
  Trace trace_;
  std::map<std::pair<int, int64_t>, Frontier> streams_;
  std::vector<int> host_;
  std::map<std::pair<std::string, int64_t>, Joint> joints_;
};

}  // namespace reknit::explorer
