#include "reknit/engine/runtime.h"

#include "reknit/base/error_text.h"
#include "reknit/base/gpu_arithmetic.h"
#include "reknit/base/rank.h"
#include "reknit/comm/job_store.h"
#include "reknit/comm/nccl.h"
#include "reknit/comm/threads.h"
#include "reknit/comm/topology.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace reknit {
namespace {

SlotPool::Allocator allocator_for(c10::Device device, bool nccl) {
  if (nccl) {
    return [device](int64_t bytes) { return nccl_buffer(bytes, device); };
  }
  return [device](int64_t bytes) {
    return at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
  };
}

void run_launched(const RankPlan& plan, const std::function<void(RankEnvironment&)>& body) {
  const Rendezvous& place = *plan.rendezvous;
  const c10::Device device = plan.devices.at(0);
  const RankScope scope(place.rank, place.world, device);
  const CommOptions options{.name = "world",
                            .timeout = plan.timeout,
                            .nodes = spread_over_nodes(place.world, plan.nodes)};
  RankEnvironment environment{
      device.is_cpu() ? make_gloo(place, options) : make_nccl(place, options),
      allocator_for(device, !device.is_cpu())};
  try {
    body(environment);
  } catch (const std::exception& error) {
    environment.world->abort(first_line(error));
    if (!plan.report) {
      throw;
    }
    const auto job = JobStore::join(place, options);
    const bool echo = dynamic_cast<const AbortedError*>(&error) != nullptr;
    auto code = job->await_speaker(echo);
    if (!code) {
      code = plan.report(error);
      job->said(*code);
    }
    throw SaidError(*code);
  }
}

bool one_gpu_each(const std::vector<c10::Device>& devices) {
  std::set<int> indices;
  for (const c10::Device& device : devices) {
    if (device.is_cpu() || !indices.insert(device.index()).second) {
      return false;
    }
  }
  return true;
}

}  // namespace

void run_on_ranks(const RankPlan& plan, const std::function<void(RankEnvironment&)>& body) {
  fix_order_of_gpu_sums(plan.deterministic);
  if (plan.rendezvous) {
    run_launched(plan, body);
    return;
  }
  const CommOptions options{
      .name = "world",
      .timeout = plan.timeout,
      .nodes = spread_over_nodes(static_cast<int>(plan.devices.size()), plan.nodes)};
  const bool nccl = nccl_available() && one_gpu_each(plan.devices) && plan.devices.size() > 1;
  auto made = nccl ? make_nccl_thread_group(plan.devices, options)
                   : make_thread_group(static_cast<int>(plan.devices.size()), options);
  std::vector<RankEnvironment> environments;
  for (size_t rank = 0; rank < made.size(); ++rank) {
    environments.push_back({std::move(made[rank]), allocator_for(plan.devices[rank], nccl)});
  }
  run_ranks(
      plan.devices, [&](int rank) { body(environments[rank]); },
      [&](const std::string& reason) {
        for (const RankEnvironment& environment : environments) {
          environment.world->abort(reason);
        }
      });
}

int64_t largest(Communicator& world, int64_t mine) {
  const Stream& stream = this_rank().compute;
  const at::Tensor value =
      at::full({1}, mine, at::TensorOptions(at::kLong).device(this_rank().device));
  return world.all_reduce({value}, ReduceOp::kMax, stream).wait_on_host()[0].item<int64_t>();
}

std::vector<double> reduce_over_ranks(Communicator& world, const std::vector<double>& mine,
                                      ReduceOp op) {
  const Stream& stream = this_rank().compute;
  const at::Tensor local = at::tensor(mine, at::kDouble).to(this_rank().device);
  const at::Tensor total = world.all_reduce({local}, op, stream).wait_on_host()[0].cpu();
  const auto* data = total.const_data_ptr<double>();
  return {data, data + total.numel()};
}

std::vector<std::string> gather_texts(Communicator& world, const std::string& mine) {
  // Each piece: 8 bytes of length, then the text, padded to the longest.
  const int64_t piece = 8 + largest(world, static_cast<int64_t>(mine.size()));
  at::Tensor host = at::zeros({piece}, at::kByte);
  const auto length = static_cast<uint64_t>(mine.size());
  std::memcpy(host.mutable_data_ptr<uint8_t>(), &length, 8);
  std::memcpy(host.mutable_data_ptr<uint8_t>() + 8, mine.data(), mine.size());
  const Stream& stream = this_rank().compute;
  const at::Tensor shard = host.to(this_rank().device);
  const at::Tensor full = at::empty({piece * world.size()}, shard.options());
  const at::Tensor all = world.all_gather(full, {{full, shard}}, stream).wait_on_host().cpu();
  std::vector<std::string> texts;
  for (int rank = 0; rank < world.size(); ++rank) {
    const uint8_t* begin = all.const_data_ptr<uint8_t>() + rank * piece;
    uint64_t size = 0;
    std::memcpy(&size, begin, 8);
    texts.emplace_back(reinterpret_cast<const char*>(begin) + 8, size);
  }
  return texts;
}

namespace {

at::Tensor broadcast_bytes(Communicator& world, at::Tensor bytes) {
  const Stream& stream = this_rank().compute;
  auto result = world.broadcast({bytes.to(this_rank().device)}, 0, stream).wait_on_host();
  return result.front().to(at::kCPU);
}

}  // namespace

std::string broadcast_text(Communicator& world, const std::string& text) {
  const at::Tensor length =
      broadcast_bytes(world, at::full({1}, static_cast<int64_t>(text.size()), at::kLong));
  at::Tensor bytes = at::zeros({length.item<int64_t>()}, at::kByte);
  if (world.rank() == 0) {
    std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  }
  bytes = broadcast_bytes(world, bytes);
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

}  // namespace reknit
