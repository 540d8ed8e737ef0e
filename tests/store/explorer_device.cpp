#include "tests/store/explorer_device.h"

#include "reknit/base/error.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace reknit::explorer {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

/// What the recording thread is at; one rank at a time.
struct Current {
  Recorder* recorder = nullptr;
  int rank = 0;
  int64_t stream = 0;
  int64_t next_stream = 1;
};
Current current;

/// Addresses are numbers here; nothing lies behind them.
struct Memory {
  std::map<uintptr_t, Cells> buffers;  ///< by first address
  uintptr_t next = uintptr_t{1} << 44;
};
Memory memory;

/// A recorded point: what was ahead of it.
struct Point {
  Recorder::Frontier frontier;
};

c10::Stream stream_of(int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, device_of(current.rank), id);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return device_of(current.rank); }
  c10::Device getDevice() const override { return device_of(current.rank); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 64; }
  c10::Stream getStream(c10::Device) const override { return stream_of(current.stream); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return stream_of(current.next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(std::exchange(current.stream, stream.id()));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Point*>(event);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Point;
    }
    static_cast<Point*>(*event)->frontier = current.recorder->frontier(current.rank, stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      current.recorder->stream_waits(current.rank, stream.id(),
                                     static_cast<Point*>(event)->frontier);
    }
  }
  bool queryEvent(void*) const override {
    throw StateError(
        "the host asked whether an event is done: its program depends on timing, "
        "which one recording cannot show");
  }
  void synchronizeEvent(void* event) const override {
    current.recorder->host_waits(current.rank, static_cast<Point*>(event)->frontier);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    current.recorder->host_waits(current.rank,
                                 current.recorder->frontier(current.rank, stream.id()));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Addresses final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const uintptr_t address = memory.next;
    memory.next += (bytes / kCellBytes + 2) * kCellBytes;
    memory.buffers[address] = current.recorder->trace().allocate(static_cast<int64_t>(bytes));
    void* pointer = reinterpret_cast<void*>(address);
    return {pointer, pointer, [](void*) {}, device_of(current.rank)};
  }
  void copy_data(void*, const void*, size_t) const override {
    throw StateError("the explorer has no bytes to copy");
  }
};

void run(std::string label, Assign assign) {
  Node node;
  node.label = std::move(label);
  node.assigns.push_back(std::move(assign));
  current.recorder->enqueue(current.rank, current.stream, std::move(node));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat>) {
  static Addresses addresses;
  return at::detail::empty_generic(size, &addresses,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), std::nullopt);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin) {
  return empty(size, dtype, layout, device, pin, std::nullopt);
}

at::Tensor& zero_(at::Tensor& self) {
  run("zero", {cells_of(self), {}, {0}});
  return self;
}

at::Tensor& fill_(at::Tensor& self, const at::Scalar& value) {
  run("fill", {cells_of(self), {}, {value.toDouble() == 0 ? 0 : poison()}});
  return self;
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool) {
  run("copy", {cells_of(self), {cells_of(source)}, {}});
  return self;
}

at::Tensor& add_(at::Tensor& self, const at::Tensor& other, const at::Scalar&) {
  run("accumulate", {cells_of(self), {cells_of(self), cells_of(other)}, {}});
  return self;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("zero_", zero_);
  library.impl("fill_.Scalar", fill_);
  library.impl("copy_", copy_);
  library.impl("add_.Tensor", add_);
}

class SimulatedWork : public Work {
 public:
  SimulatedWork(std::string group, int64_t sequence, std::vector<at::Tensor> kept)
      : group_(std::move(group)), sequence_(sequence), kept_(std::move(kept)) {}
  void wait(const Stream& stream) override {
    current.recorder->wait(group_, sequence_, current.rank,
                           stream.on_cpu() ? -1 : stream.native()->id());
  }
  bool ready() const noexcept override { return true; }
  void abandon() noexcept override {}

 private:
  std::string group_;
  int64_t sequence_;
  std::vector<at::Tensor> kept_;
};

class SimulatedCommunicator : public OperationCommunicator {
 public:
  SimulatedCommunicator(CommOptions options, std::vector<int> members, int rank)
      : options_(std::move(options)), members_(std::move(members)) {
    rank_ = static_cast<int>(std::find(members_.begin(), members_.end(), rank) - members_.begin());
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const CommOptions& options() const override { return options_; }
  std::unique_ptr<Communicator> split(const std::vector<int>& members,
                                      const std::string& name) override {
    CommOptions part = part_options(options_, size(), rank_, members, name);
    std::vector<int> ranks;
    for (const int member : members) {
      ranks.push_back(members_[member]);
    }
    return std::make_unique<SimulatedCommunicator>(std::move(part), ranks, members_[rank_]);
  }
  void abort(const std::string&) noexcept override {}
  void require_alive() override {}

 protected:
  std::unique_ptr<Work> start(Operation operation, const Stream& stream) override {
    std::vector<at::Tensor> kept = operation.out;
    const auto& inputs = current.recorder->frontier(current.rank, stream.native()->id());
    current.recorder->join(options_.name, members_, sequence_, rank_, std::move(operation), inputs);
    return std::make_unique<SimulatedWork>(options_.name, sequence_++, std::move(kept));
  }

 private:
  CommOptions options_;
  std::vector<int> members_;
  int rank_ = 0;
  int64_t sequence_ = 0;
};

}  // namespace

DeviceScope::DeviceScope(Recorder& recorder, int rank) {
  current = {&recorder, rank, 0, 1};
}

DeviceScope::~DeviceScope() {
  current = {};
}

c10::Device device_of(int rank) {
  return {kType, static_cast<c10::DeviceIndex>(rank)};
}

Cells cells_of(const at::Tensor& tensor) {
  REKNIT_INVARIANT(tensor.device().type() == kType && tensor.is_contiguous(),
                   "the explorer knows contiguous tensors of its own device");
  if (tensor.numel() == 0) {
    return {};
  }
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const auto buffer = std::prev(memory.buffers.upper_bound(address));
  const auto offset = static_cast<int64_t>(address - buffer->first);
  REKNIT_INVARIANT(offset % kCellBytes == 0, "a view begins at byte ", offset);
  const int64_t begin = buffer->second.begin + offset / kCellBytes;
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  return {begin, begin + (bytes + kCellBytes - 1) / kCellBytes};
}

void launch(const Stream& stream, Node node) {
  current.recorder->enqueue(current.rank, stream.native()->id(), std::move(node));
}

std::unique_ptr<Communicator> make_world(CommOptions options, int size, int rank) {
  std::vector<int> members(size);
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<SimulatedCommunicator>(std::move(options), std::move(members), rank);
}

}  // namespace reknit::explorer
