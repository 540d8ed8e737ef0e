// What a rank's collectives and groups did and when: for the communication log and the trace.
#pragma once

#include "reknit/base/moment.h"
#include "reknit/base/trace.h"
#include "reknit/comm/operation.h"

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace reknit {

class Recorder;

/// One operation of one rank. It begins when the rank has joined and the group's earlier
/// operations are over, on a device when its stream gets there: from then on the rank waits for
/// the others. It ends when the result is there.
struct CommRecord {
  CommKind kind = CommKind::kBarrier;
  int64_t bytes = 0;   ///< payload
  int64_t number = 0;  ///< of the group's recorded operations, from 0
  Moment begin;
  Moment end;
  std::atomic<bool> ended = false;  ///< from then on nobody writes

  /// The result is there once `stream` has done what is queued on it. Any thread, once.
  void finish(const Stream& stream) {
    end = Moment(stream);
    ended.store(true, std::memory_order_release);
  }
};

/// What one rank did on one group of ranks; for Recorder alone.
struct CommHistory {
  Recorder* recorder = nullptr;
  OperationCommunicator* communicator = nullptr;  ///< null: it is gone
  std::string name;
  int rank = 0;
  int size = 1;
  int64_t begun = 0;
  std::deque<std::shared_ptr<CommRecord>> records;  ///< not read yet
  double last_end = 0;                              ///< seconds since 1970
};

/// A finished operation in seconds.
struct CommTime {
  std::string group;
  int group_size = 1;
  CommKind kind = CommKind::kBarrier;
  int64_t bytes = 0;
  int64_t number = 0;
  double seconds = 0;
  /// What the group's quickest rank took, which is the one that came last. So the rest of
  /// `seconds` was waiting. Equal to `seconds` where ranks are not compared.
  double moving = 0;
  bool came_last = false;  ///< this rank did, alone
  double late_by = 0;      ///< then: seconds after the last but one
};

/// While it lives, it notes what its thread's rank does. Where a rank has none, an operation or
/// a change of state costs a look at an empty pointer. One at a time for a thread, the rank's
/// (StateError for a second one); made inside the RankScope.
class Recorder {
 public:
  /// `trace`: where everything goes too; null: nowhere. It outlives this.
  explicit Recorder(Trace* trace);
  /// Hands the trace what is known, also of operations that never ended.
  ~Recorder();
  Recorder(const Recorder&) = delete;

  /// This thread's; null: none.
  static Recorder* current();

  /// Of every operation since the last call, in order, group after group. Blocks the host until
  /// the device has ended them. `compare`: the ranks of each group tell each other their times;
  /// then it is collective, between steps, when all of a group's ranks have joined the same.
  std::vector<CommTime> collect(bool compare);

  /// While it lives, operations are not noted: those that only tell what was noted.
  class Silence {
   public:
    explicit Silence(Recorder& recorder) : recorder_(recorder) { recorder_.paused_ = true; }
    ~Silence() { recorder_.paused_ = false; }
    Silence(const Silence&) = delete;

   private:
    Recorder& recorder_;
  };

  /// The group of parameters `name` gets into the state `label`, a literal, once `stream` gets
  /// here; an earlier state ends. Null: it has none that takes a slot.
  void change_state(const std::string& name, const char* label, const Stream& stream,
                    int64_t version);
  /// An instant of a row.
  void mark(const std::string& row, const char* label, const Stream& stream, int64_t number);
  /// Something that began at `begin` and has ended, on the host.
  void span(const std::string& row, const char* label, const Moment& begin, int64_t number);

 private:
  friend class OperationCommunicator;

  /// A state that has begun, or an instant (`end` is of no meaning then).
  struct Happening {
    int row;
    const char* label;
    int64_t number;
    Moment begin;
    Moment end;
    bool instant;
  };
  struct State {
    int row;
    const char* label = nullptr;
    int64_t version = 0;
    Moment since;
  };

  std::shared_ptr<CommRecord> begin(OperationCommunicator& communicator,
                                    std::shared_ptr<CommHistory>& group, const Operation& operation,
                                    const Stream& stream);
  std::vector<CommTime> read(CommHistory& group, const MomentClock& clock);
  void compare(CommHistory& group, std::vector<CommTime>& times);
  void trace_states(const MomentClock* clock);
  void trace_unfinished();
  void make_room();

  Trace* const trace_;
  bool paused_ = false;
  std::vector<std::shared_ptr<CommHistory>> groups_;  ///< by their first operation
  std::map<std::string, State> states_;
  std::vector<Happening> happened_;
};

}  // namespace reknit
