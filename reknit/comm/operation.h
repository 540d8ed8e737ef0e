// One collective as every backend sees it: kind, tensors, checks, sentences.
#pragma once

#include "reknit/comm/communicator.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace reknit {

struct CommHistory;
struct CommRecord;

enum class CommKind {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kAllToAll,
  kBarrier,
  kSplit
};

const char* name_of(CommKind kind);

/// A collective with its tensors. The ranks of a group must agree on everything but
/// the addresses and `members`.
///
/// | kind           | in     | out    |
/// |----------------|--------|--------|
/// | all_gather     | shards | fulls  |
/// | reduce_scatter | fulls  | shards |
/// | all_reduce     | -      | in place |
/// | broadcast      | -      | in place |
/// | all_to_all     | in     | out    |
/// | barrier, split | -      | -      |
struct Operation {
  CommKind kind = CommKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  std::vector<int> members;  ///< split only; ranks may differ
  std::string name;          ///< split only
  std::vector<at::Tensor> in;
  std::vector<at::Tensor> out;
  std::shared_ptr<CommRecord> record;  ///< where the backend notes the end; null: nobody asks

  /// The tensors that hold the payload: the full side of gathers and scatters.
  const std::vector<at::Tensor>& payload() const {
    return kind == CommKind::kReduceScatter ? in : out;
  }
  int64_t payload_bytes() const;
  /// True if two ranks may join with these.
  bool agrees_with(const Operation& other) const;
  /// Equal exactly for those that agree (but for collisions of the hash).
  uint64_t signature() const;
  /// "all_reduce(max) of Float 8, Half 4".
  std::string describe() const;
};

/// The options of the part that `members` of a group split off; StateError unless `rank` is
/// one of them and all are different ranks of `size`.
CommOptions part_options(const CommOptions& whole, int size, int rank,
                         const std::vector<int>& members, const std::string& name);

/// The sentence of a split in which `rank` names other members than they do themselves.
std::string split_sentence(const CommOptions& options, int64_t sequence, int rank,
                           const std::vector<int>& members);

/// Piece `index` of `pieces` equal ones of the contiguous `full`, flat; no copy.
at::Tensor piece_of(const at::Tensor& full, int index, int pieces);

/// "1, 3 to 5, 9".
std::string list_of(const std::vector<int>& ranks);

/// The sentence of a deadline: group, operation, sequence number, missing ranks.
/// `reached[r]` is how many operations rank r has joined. Empty: that is not known, and the
/// caller adds why.
std::string timeout_sentence(const CommOptions& options, CommKind kind, int64_t sequence, int size,
                             const std::vector<int64_t>& reached);

/// The sentence of two ranks that join different operations, each described.
std::string mismatch_sentence(const CommOptions& options, int64_t sequence, int rank,
                              const std::string& operation, int other_rank,
                              const std::string& other_operation);

/// The sentence of a result that `rank` dropped; tells unwinding from forgetting.
std::string abandon_sentence(const CommOptions& options, CommKind kind, int64_t sequence, int rank);

/// Base of the backends: checks the arguments (StateError), counts, and hands every
/// operation to one `start`.
class OperationCommunicator : public Communicator {
 public:
  OperationCommunicator();
  ~OperationCommunicator() override;
  const CommCounts& counts() const override { return counts_; }

 protected:
  /// Joins `operation`, ordered after the work queued on `stream`; throws CommError
  /// if the group is aborted.
  virtual std::unique_ptr<Work> start(Operation operation, const Stream& stream) = 0;
  /// False where another communicator does the work, which then is the one to be recorded.
  virtual bool records() const { return true; }

  std::unique_ptr<Work> start_all_gather(const std::vector<GatherPair>& pairs,
                                         const Stream& stream) final;
  std::unique_ptr<Work> start_reduce_scatter(const std::vector<ScatterPair>& pairs,
                                             const Stream& stream) final;
  std::unique_ptr<Work> start_all_reduce(const std::vector<at::Tensor>& tensors, ReduceOp op,
                                         const Stream& stream) final;
  std::unique_ptr<Work> start_broadcast(const std::vector<at::Tensor>& tensors, int root,
                                        const Stream& stream) final;
  std::unique_ptr<Work> start_all_to_all(const at::Tensor& out, const at::Tensor& in,
                                         const Stream& stream) final;
  std::unique_ptr<Work> start_barrier() final;

 private:
  std::unique_ptr<Work> checked_start(Operation operation, const Stream& stream);

  CommCounts counts_;
  std::shared_ptr<CommHistory> history_;  ///< what this rank's Recorder notes; null: nobody asks
};

}  // namespace reknit
