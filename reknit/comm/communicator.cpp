#include "reknit/comm/communicator.h"

#include "reknit/base/pause.h"

namespace reknit {
namespace {

constexpr CommCounts::Entry CommCounts::*kCommEntries[] = {
    &CommCounts::all_gather, &CommCounts::reduce_scatter, &CommCounts::all_reduce,
    &CommCounts::broadcast,  &CommCounts::all_to_all,     &CommCounts::barrier};

}  // namespace

CommCounts::Entry& CommCounts::Entry::operator+=(const Entry& other) {
  count += other.count;
  bytes += other.bytes;
  inside += other.inside;
  across += other.across;
  return *this;
}

CommCounts::Entry& CommCounts::Entry::operator-=(const Entry& other) {
  count -= other.count;
  bytes -= other.bytes;
  inside -= other.inside;
  across -= other.across;
  return *this;
}

CommCounts& CommCounts::operator+=(const CommCounts& other) {
  for (const auto entry : kCommEntries) {
    this->*entry += other.*entry;
  }
  return *this;
}

CommCounts& CommCounts::operator-=(const CommCounts& other) {
  for (const auto entry : kCommEntries) {
    this->*entry -= other.*entry;
  }
  return *this;
}

CommCounts::Entry CommCounts::total() const {
  Entry sum;
  for (const auto entry : kCommEntries) {
    sum += this->*entry;
  }
  return sum;
}

Pending<std::vector<at::Tensor>> Communicator::all_reduce(std::vector<at::Tensor> tensors,
                                                          ReduceOp op, const Stream& stream) {
  auto work = start_all_reduce(tensors, op, stream);
  return {std::move(tensors), std::move(work)};
}

Pending<std::vector<at::Tensor>> Communicator::broadcast(std::vector<at::Tensor> tensors, int root,
                                                         const Stream& stream) {
  auto work = start_broadcast(tensors, root, stream);
  return {std::move(tensors), std::move(work)};
}

Pending<at::Tensor> Communicator::all_to_all(at::Tensor out, at::Tensor in, const Stream& stream) {
  auto work = start_all_to_all(out, in, stream);
  return {std::move(out), std::move(work)};
}

void Communicator::synchronize(const Stream& stream) {
  Event queued;
  queued.record(stream);
  for (Pause pause; !queued.done(); pause()) {
    require_alive();
  }
  // What an abort has freed ends without an error.
  require_alive();
}

void Communicator::barrier() {
  struct Nothing {};
  Pending<Nothing>(Nothing{}, start_barrier()).wait(Stream());
}

}  // namespace reknit
